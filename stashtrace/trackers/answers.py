"""What is put into a tracker, and into which: the same for all of them."""

from __future__ import annotations

import contextlib
import io
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from stashtrace.analysis.findings import Summary, summarize
from stashtrace.errors import MissingDataError, OutputError
from stashtrace.registry import one_line
from stashtrace.replay.causes import what_to_do_first
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.trackers.names import TRACKERS
from stashtrace.trackers.noted_runs import noted_run
from stashtrace.trackers.values import numbers, prefix_of, sentences


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one run."""

    #: As in ``values.numbers`` and ``values.sentences``.
    numbers: dict[str, float]
    sentences: dict[str, str]
    #: The page of ``stashtrace report``.
    report: Path
    #: Steps of a rank: where the answers stand on the axis of steps.
    steps_count: int


#: Writes answers into the run of a note (``probes/trackers.py``), and returns a name for that run.
Writer = Callable[[dict[str, str], Answers], str]


def log_answers(trace: Trace, name: str, path: str, made: tuple[Summary, Table | None] | None = None) -> str:
    """Write the answers of a run into the run of a tracker that the job wrote to; return a name for that.

    ``path``: of the run, as a person would type it in a shell. ``made``: its summary and ``causes``, where they
    are at hand. Raises MissingDataError if the job wrote to no run of this tracker. Raises OutputError if the tracker
    refuses.
    """
    note = noted_run(trace, name)
    if note is None:
        raise MissingDataError(
            f"the job wrote to no run of {name}", hint="a run is noted when the script begins it under `stashtrace run`"
        )
    tables, first = made if made is not None else (summarize(trace), what_to_do_first(trace))
    writer: Writer = import_module(TRACKERS[name]).write
    with tempfile.TemporaryDirectory(prefix="stashtrace-report-") as folder:
        report = Path(folder) / "stashtrace-report.html"
        report.write_text(_page(trace, path), encoding="utf-8")
        prefix = prefix_of(trace)
        steps_count = int(tables.budgets["steps_count"].max(initial=0))
        answers = Answers(numbers(tables, prefix), sentences(tables, first, path, prefix), report, steps_count)
        try:
            # Trackers greet; stdout is the job's.
            with contextlib.redirect_stdout(io.StringIO()):
                return writer(note, answers)
        except Exception as error:  # of a package that is not ours, and maybe of a network
            raise OutputError(
                f"{name} did not take the answers: {one_line(error)}",
                hint=f"`stashtrace log {path} --to {name}` tries again",
            ) from error


def _page(trace: Trace, path: str) -> str:
    from stashtrace.report.document import report_facts
    from stashtrace.report.page.page import page

    return page(report_facts(trace, shlex.split(path)))
