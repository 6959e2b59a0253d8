"""A wait for a late rank in words: the operation, who waited in it, and why the rank was late."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stashtrace.analysis.findings.blocked_calls import CALL_OF_WAIT
from stashtrace.analysis.findings.rules.stalls.blocked import BLOCKED_WORDS
from stashtrace.summary.words.policy import POLICY
from stashtrace.text.units import duration_text, few_ranks, filled, is_several, operation, percent_text, shortened

#: Cause, any that ``late`` gives -> what the late rank did; ``{longer}`` is by how much, and than whom.
_WORDS = {
    "prep": "{maker} took {longer} to make its batch",
    "handoff": "its batch was handed over {later}",
    "fetch": "{maker} was blocked in storage {longer}",
    "compute": "it computed {longer}",
    "gc": "it collected garbage {longer}",
    "compile": "it was in torch.compile {longer}",
    "sleep": "it slept {longer}",
    "cpu_contention": "it waited {longer} for a CPU",
    "checkpoint": "it was {longer} in checkpoints",
    "h2d": "copies between host and device took it {longer}",
    "sync": "its device was out of work {longer} after blocking calls",
    "launch": "its device waited {longer} for its host{to_launch}",
    "python": "it ran code of the loop {longer}",
    "straggler": "it waited {longer} for {whom}",
    "network": "its transfers between hosts took {longer}",
    "interconnect": "its transfers inside the host took {longer}",
    "before": "it began {later}; the cause lies before that",
    "other": "it was blocked {longer} {blocked}",
}


def wait_text(row: Mapping[str, Any]) -> str:
    """Say what a row of ``late`` says: who waited how long, in what, for whom, and what that rank did longer."""
    waiting, several = row["waiting_ranks"], is_several(row["waiting_ranks"])
    who = f"rank{'s' if several else ''} {few_ranks(waiting)}"
    what = f"{operation(row['op'])} {row['sequence']}"
    late, why = f"rank {row['late_rank']}", _reason(row)
    if row["method"] == "hung":
        hangs = f"{who} {'hang' if several else 'hangs'} in {what}"
        if row["late_rank"] < 0:
            return f"{hangs}; ranks that left no record here may never have entered it"
        return f"{hangs}, which {late} never entered{why}"
    waited = f"{who} waited {'up to ' if several else ''}{duration_text(row['wait_ns'])} in {what}"
    return f"{waited}; {late} was late{why}" if row["late_rank"] >= 0 else f"{waited}; the clocks do not show for whom"


def _reason(row: Mapping[str, Any]) -> str:
    """Say why the rank of a row was late, in words that follow the wait; empty where nothing is known."""
    if row["cause_kind"] == "":
        return ""
    if row["cause_kind"] == "unknown":
        return "" if row["method"] == "hung" else "; the recording does not show why"
    if 0 <= row["late_by_ns"] * POLICY.exceeds_times < row["cause_ns"]:
        return ": several kinds of its time differ from those of the others"
    return f": {late_because(row)}"


def late_because(at: Mapping[str, Any]) -> str:
    """Say why the rank of a row of ``late`` was late, with the worker and file, kernel or phase if they are known."""
    kind, path = at["cause_kind"], at["cause_name"]
    maker = f"its worker {at['cause_worker_id']}" if at["cause_worker_id"] >= 0 else "it"
    spent = f"{maker} spent {duration_text(at['named_ns'])}"
    if kind == "fetch" and path:
        return f"{spent} reading {os.path.basename(path)}{_of_wait(at['named_ns'], at)}"
    if kind in ("other", "python") and path.startswith("/"):
        file = shortened(os.path.basename(path), POLICY.name_characters)
        return f"{spent} in calls on {file}{_of_wait(at['named_ns'], at)}"
    name, length = shortened(path, POLICY.name_characters), duration_text(at["cause_ns"])
    than = " than the median of the others" if is_several(at["waiting_ranks"]) else ""
    part = "" if kind == "before" else _of_wait(at["cause_ns"], at)  # that is no reason yet
    known = {
        "maker": maker,
        "longer": f"{length} longer{than}",
        "later": f"{length} later{than}",
        "to_launch": f", which was in {name}" if name else " to launch",
        "whom": f"{name} in another group" if name else "others itself",
        "blocked": _blocked_in(name),
    }
    text = filled(_WORDS[kind], known)
    if not name or kind in ("other", "launch", "straggler"):
        return text + part
    if kind == "compute":
        place = "outside forward, backward and optimizer" if name.startswith("between") else f"in {name}"
        # Clocks of kernels and of kinds round differently.
        whole = at["named_ns"] >= POLICY.whole_ratio * at["cause_ns"]
        return f"{text} {place}{part}" if whole else f"{text}{part}, {duration_text(at['named_ns'])} of that {place}"
    return f"{text}{part} ({os.path.basename(path) if kind == 'checkpoint' else name})"


def _blocked_in(name: str) -> str:
    """Say in which call a thread was blocked: ``waiting for a lock, ...`` or ``in recv()``."""
    call = CALL_OF_WAIT.get(name, "")
    return BLOCKED_WORDS[call] if call else f"in {name}()" if name else "with no known cause"


def _of_wait(said_ns: float, at: Mapping[str, Any]) -> str:
    """Say which part of the wait a reason is, if it is not all of it."""
    if said_ns >= POLICY.nearly_all_ratio * at["wait_ns"]:
        return ""
    which = "the longest of these waits" if is_several(at["waiting_ranks"]) else "that wait"
    return f" ({percent_text(said_ns / at['wait_ns'])} of {which})"
