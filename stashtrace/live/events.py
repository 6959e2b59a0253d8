"""The log of what happened to a run: one JSON object a line in the run directory, and a line of text for people."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import TextIO

from stashtrace.errors import FormatError
from stashtrace.live.state import Event
from stashtrace.live.table import open_own
from stashtrace.visible import visible_line

EVENTS_FILE = "events-{host}.jsonl"


class EventLog:
    """Takes events, each once. ``directory``: of the run. ``stream``: where people read; None for nowhere."""

    def __init__(self, directory: str | os.PathLike[str], stream: TextIO | None) -> None:
        self._path = Path(directory) / EVENTS_FILE.format(host=os.uname().nodename)
        self._stream = stream
        self.events: list[Event] = []
        #: Events that could not be written.
        self.unwritten_count = 0

    def add(self, event: Event) -> None:
        """Write an event. What cannot be written is counted: the job goes on."""
        self.events.append(event)
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal was closed
                self._stream.write(f"stashtrace: {visible_line(event.text)}\n")
                self._stream.flush()
        try:
            with open(self._path, "a", encoding="utf-8", opener=open_own) as file:
                file.write(json.dumps(dataclasses.asdict(event)) + "\n")
        except OSError:
            self.unwritten_count += 1


def read_events(directory: str | os.PathLike[str]) -> list[Event]:
    """Return the events of all hosts of a run by time; a line that was cut is left out.

    Raises FormatError if a file cannot be read.
    """
    events = []
    for path in sorted(Path(directory).glob(EVENTS_FILE.format(host="*"))):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                events.append(Event(**json.loads(line)))
    return sorted(events, key=lambda event: event.realtime_ns)
