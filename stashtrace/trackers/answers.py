"""Answers of a run as numbers and sentences by name, and the run of a tracker that they are written to."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.findings import Summary, summarize
from stashtrace.errors import MissingDataError, OutputError, one_line
from stashtrace.replay.causes import what_to_do_first
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.trackers.writers import TRACKERS, Answers

#: Begin of the key of the fact, before the name of the tracker; the same in ``probes/trackers.py``.
FACT = "tracker "


def noted_run(trace: Trace, tracker: str) -> dict[str, str] | None:
    """Return what was noted of the newest run of a tracker, of the lowest rank that has one; None if none was noted.

    A process without a rank counts after those with one. Notes that cannot be read are ignored.
    """
    code = trace.strings.find(FACT + tracker)
    if code < 0:
        return None
    rows = trace.metadata.take(trace.metadata["key_code"] == code)
    ranks = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    found: dict[int, dict[str, str]] = {}
    for process, value in zip(rows["process_id"].tolist(), rows["value_code"].tolist(), strict=True):
        note = _read(trace.text(value))
        if note is not None:
            rank = ranks.get(process, -1)
            found[rank if rank >= 0 else np.iinfo(np.int64).max] = note
    return found[min(found)] if found else None


def _read(text: str) -> dict[str, str] | None:
    try:
        note = json.loads(text)
    except ValueError:
        return None
    return {str(k): str(v) for k, v in note.items()} if isinstance(note, dict) else None


PREFIX = "stashtrace/"


def prefix_of(trace: Trace) -> str:
    """Return what names begin with: of a run that holds one host of several, the host as well.

    Each host's part then has separate names in a run of a tracker that all hosts write to.
    """
    processes = trace.processes
    ranks, hosts = processes.take(processes["rank"] >= 0), np.unique(processes["host_code"])
    is_part = len(hosts) == 1 and len(np.unique(ranks["rank"])) < int(processes["world_size"].max(initial=-1))
    return f"{PREFIX}{trace.text(int(hosts[0]))}/" if is_part else PREFIX


def numbers(tables: Summary, prefix: str = PREFIX) -> dict[str, float]:
    """Return the numbers of docs/guides/trackers.md by name; without steps only those of the recording."""
    values: dict[str, float] = {}
    budgets = tables.budgets
    if len(budgets):
        # Each column has a row for each rank and kind of step, and all of these have the same columns.
        columns = list(dict.fromkeys(budgets["column"].tolist()))
        one = budgets.take(budgets["column"] == columns[0])
        whole_ns = float(budgets["stall_ns"].sum())  # exact, where the mean step is rounded to a nanosecond
        values["step_s"] = whole_ns / float(one["steps_count"].sum()) / 1e9
        values["steps_count"] = max(int(one["steps_count"][one["rank"] == rank].sum()) for rank in one["rank"])
        values["ranks_count"] = len(set(one["rank"].tolist()))
        for column in columns:
            values[f"{column}_ratio"] = float(budgets["stall_ns"][budgets["column"] == column].sum()) / whole_ns
        late = next((f for f in _findings(tables, "verdict") if f["kind"] == "late" and f["cause_rank"] >= 0), None)
        values["straggler_rank"] = late["cause_rank"] if late else -1
        values["straggler_wait_s"] = late["stall_ns"] / 1e9 if late else 0.0
    for found in _findings(tables, "trust"):
        if found["kind"] == "own_cost":
            values["own_cpu_ratio"] = found["share_ratio"]
        elif found["kind"] == "lost_records":
            values["lost_records_count"] = found["items_count"]
    return {prefix + name: value for name, value in values.items()}


def sentences(tables: Summary, first: Table | None, path: str, prefix: str = PREFIX) -> dict[str, str]:
    """Return the sentences about a run: the headline, its verdicts a line each, and what to do first.

    ``first``: rows of ``causes``. ``path``: of the run, for the commands in the sentences.
    """
    answers = document(tables, first, path)
    verdicts = [f["text"] for f in answers["findings"] if f["section"] == "verdict"]
    said = {
        "headline": answers["headline"],
        "verdicts": "\n".join(verdicts),
        "do_first": "\n".join(row["text"] for row in answers["do_first"]),
    }
    return {prefix + name: text for name, text in said.items() if text}


def _findings(tables: Summary, section: str) -> list[dict[str, Any]]:
    return [row for row in tables.findings.rows() if row["section"] == section]


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
    with tempfile.TemporaryDirectory(prefix="stashtrace-report-") as folder:
        report = Path(folder) / "stashtrace-report.html"
        report.write_text(_page(trace, path), encoding="utf-8")
        prefix = prefix_of(trace)
        steps_count = int(tables.budgets["steps_count"].max(initial=0))
        answers = Answers(numbers(tables, prefix), sentences(tables, first, path, prefix), report, steps_count)
        try:
            # Trackers greet; stdout is the job's.
            with contextlib.redirect_stdout(io.StringIO()):
                return TRACKERS[name](note, answers)
        except Exception as error:  # of a package that is not ours, and maybe of a network
            raise OutputError(
                f"{name} did not take the answers: {one_line(error)}",
                hint=f"`stashtrace log {path} --to {name}` tries again",
            ) from error


def _page(trace: Trace, path: str) -> str:
    from stashtrace.report.document import report_facts
    from stashtrace.report.page.page import page

    return page(report_facts(trace, shlex.split(path)))
