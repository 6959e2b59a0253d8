"""TensorBoard: one event file beside those of the job. A log folder takes any file, so the page lies there as well."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from stashtrace.trackers.answers import Answers
from stashtrace.whole_files import whole_file


def write(note: dict[str, str], answers: Answers) -> str:
    """Add to the log folder, and return it."""
    folder = Path(note["log_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder), filename_suffix=".stashtrace")
    parts = [scalar_pb(name, value) for name, value in answers.numbers.items()]
    parts += [text_pb(name, text) for name, text in answers.sentences.items()]
    for part in parts:
        whole = Summary.FromString(part.SerializeToString())
        writer.add_event(Event(wall_time=time.time(), step=answers.steps_count, summary=whole))
    writer.close()
    with whole_file(folder / answers.report.name) as partial:
        partial.write_bytes(answers.report.read_bytes())
    return str(folder)
