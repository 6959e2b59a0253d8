"""Sentences about late ranks: who waited for whom in which operation, and what kept the late one."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from stashtrace.analysis.registry import analyze
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.units import duration_text, shortened

_NAME_WIDTH = 40
_ALL_RATIO = 0.95
#: Somebody is late by a few microseconds in every step: less than this part of the mean one does not count.
_MATTERS_DIVISOR = 10
#: Steps of which it is worth saying how many.
_SEVERAL = 3
#: Cause -> what the late rank did; ``{ns}`` is by how much longer than the others.
_WORDS = {
    "prep": "{who} took {ns} longer to make its batch",
    "handoff": "its batch was handed over {ns} later",
    "fetch": "{who} was blocked in storage {ns} longer",
    "compute": "it computed {ns} longer",
    "gc": "it collected garbage {ns} longer",
    "sleep": "it slept {ns} longer",
    "cpu_contention": "it stood in the run queue {ns} longer",
    "checkpoint": "it saved a checkpoint {ns} longer",
    "h2d": "copies between host and device took it {ns} longer",
    "sync": "its device ran dry {ns} longer after blocking calls",
    "launch": "its device waited {ns} longer for its host to launch",
    "straggler": "it waited {ns} longer for others itself",
    "network": "its transfers between hosts took {ns} longer",
    "interconnect": "its transfers inside the host took {ns} longer",
    "before": "it began {ns} later, what kept it lies before",
    "other": "it was blocked {ns} longer with no known cause",
}


def worst_wait(trace: Trace, late_rank: int, steps: Table) -> tuple[str, bool]:
    """The costliest wait for a rank within the counted steps, as a sentence, and whether its cause is known."""
    found = analyze(trace, "late")
    mine = found.take((found["late_rank"] == late_rank) & np.isin(found["step"], steps["step"]))
    if not len(mine):
        return "", False
    row = next(mine.rows())
    return sentence(row), row["cause_kind"] not in ("unknown", "other", "before")


def how_often(tables: Mapping[str, Table], victim: int, late_rank: int) -> str:
    """In how many of the counted steps that cost a rank time it waited for this late rank most."""
    steps, stalls = tables["steps"], tables["stalls"]
    own = steps["step"][steps["rank"] == victim]
    lost = stalls.take((stalls["rank"] == victim) & (stalls["kind"] == "straggler") & np.isin(stalls["step"], own))
    lost = lost.take(lost["stall_ns"] * _MATTERS_DIVISOR * len(lost) >= lost["stall_ns"].sum())
    if len(lost) < _SEVERAL:
        return ""
    times = np.count_nonzero(lost["cause_rank"] == late_rank)
    of = f"{len(lost)} steps" if len(lost) == len(own) else f"the {len(lost)} steps that lose most by it"
    return f"rank {late_rank} is the late one in {times} of {of}"


def sentence(row: dict[str, Any]) -> str:
    """A row of ``late`` in words."""
    several = "," in row["waiting_ranks"] or "-" in row["waiting_ranks"]
    whom = f"rank{'s' if several else ''} {row['waiting_ranks']}"
    where = f"{row['op'].replace('_', '-')} {row['sequence']}"
    if row["late_rank"] < 0 and row["method"] == "hung":
        verb = "hang" if several else "hangs"
        return f"{whom} {verb} in {where}; ranks that left no record here may never have entered it"
    if row["late_rank"] < 0:
        return f"{whom} waited {duration_text(row['wait_ns'])} in {where}; the clocks cannot tell for whom"
    if row["method"] == "hung":
        verb = "hang" if several else "hangs"
        return f"{whom} {verb} in {where}, which rank {row['late_rank']} never entered{_last_seen(row)}"
    waited = f"{whom} waited {duration_text(row['wait_ns'])} in {where}; rank {row['late_rank']} was late"
    return waited + (f": {why(row)}" if row["cause_kind"] != "unknown" else ", why is not in the recording")


def _last_seen(row: dict[str, Any]) -> str:
    return f": {why(row)}" if row["cause_kind"] != "unknown" else ""


def why(row: dict[str, Any]) -> str:
    """What kept the late rank, with worker and file, kernel or phase where they are known."""
    kind, worker = row["cause_kind"], row["cause_worker_id"]
    name = shortened(row["cause_name"], _NAME_WIDTH)
    who = f"its worker {worker}" if worker >= 0 else "it"
    if kind == "fetch" and row["cause_name"]:
        return f"{who} spent {duration_text(row['named_ns'])} reading {os.path.basename(row['cause_name'])}"
    text = _WORDS[kind].format(ns=duration_text(row["cause_ns"]), who=who)
    if not name:
        return text
    if kind == "compute":
        place = name if name.startswith("between") else f"in {name}"
        # Clocks of kernels and of kinds round differently.
        whole = row["named_ns"] >= _ALL_RATIO * row["cause_ns"]
        return f"{text} {place}" if whole else f"{text}, {duration_text(row['named_ns'])} of that {place}"
    if kind == "checkpoint":
        return f"{text}, writing {os.path.basename(row['cause_name'])}"
    if kind == "straggler":
        return text.replace("others itself", f"{name} in another group")
    return f"{text} ({name})"
