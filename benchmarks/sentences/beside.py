"""Hold the rows besides headline and verdicts against what is known: how the job ended, its files, what was seen.

Rows that no clock of a job can judge (own cost, time stolen by a hypervisor, hidden communication) are left out.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

from sentences.judgement import FALSE, TRUE, Checked, Expected, Row
from sentences.truth import Truth

#: Claims about how a job ran and ended: none of them may be made of a job that is not known for it.
_ENDINGS = ("ended_by_signal", "ended_with_code")
HOW_IT_ENDED = (*_ENDINGS, "failed", "hung", "awaited", "mismatch")
_NEVER = (
    "failed",
    "hung",
    "awaited",
    "mismatch",
    "outlived",
    "emulated_compute",
    "thinned",
    "steps_wanted",
    "other_trainers",
    "unordered",
    "hosts",
    "staged",
)
_OF_FIGURE, _OF_STEP = 0.1, 0.05


def judge(row: Row, evidence: list[Row], truth: Truth, expected: Expected) -> Checked | None:
    """One row of another section; None if nothing is known about it."""
    kind = row["kind"]
    if kind == "lost_records" and truth.ranks_count >= 0:
        wrong = f"{row['items_count']} lost" if (row["items_count"] > 0) != expected.lost else ""
    elif kind == "killed" or kind in _ENDINGS:
        wrong = "" if not truth.ours else _ending(row, evidence, expected)
    elif not truth.ours:
        return None
    elif row["section"] == "loss" or kind in _NEVER:
        right = row["section"] == "loss" and (
            expected.lost or (row["name"] == "child_killed" and bool(expected.killed))
        )
        wrong = "" if right else "there was no such thing"
    elif kind == "first_to_end":
        gone = {rank for rank, worker, _ in expected.killed if worker < 0}
        wrong = "" if row["rank"] in gone or (not gone and row["stall_ns"] > 0) else f"rank {row['rank']} before {gone}"
    elif kind == "hidden":
        wrong = _hidden(evidence, truth)
    elif kind in ("measured", "inferred", "invisible"):
        wrong = _sources(kind, {e["name"] for e in evidence}, truth, expected)
    elif kind == "clocks":
        wrong = "" if row["items_count"] == 1 else f"{row['items_count']} hosts"
    elif kind == "files":
        wrong = _files(evidence, truth)
    elif kind in ("no_files", "no_step_collectors", "isolated_python"):
        wrong = "there were files, all collectors, and a Python like any"
    elif kind == "no_updates":
        wrong = "there were updates" if any(name == "train" for name in truth.steps) else ""
    else:
        return None
    return Checked(row, FALSE if wrong else TRUE, wrong)


def unsaid(findings: Sequence[Row], expected: Expected) -> list[Checked]:
    """What happened to the job and stands in no row."""
    kinds = {row["kind"] for row in findings}
    wanted = [expected.ending.partition(" ")[0]] if expected.ending else []
    wanted += ["killed"] if expected.killed else []
    return [Checked({"section": "machine", "kind": k}, FALSE, "not said") for k in wanted if k not in kinds]


def _ending(row: Row, evidence: list[Row], expected: Expected) -> str:
    if row["kind"] == "killed":
        reported = {(e["rank"], e["worker_id"], e["name"]) for e in evidence}
        return "" if reported == expected.killed else f"{sorted(reported)}, truly {sorted(expected.killed)}"
    told_ending = f"{row['kind']} {row['name']}"
    return "" if told_ending == expected.ending else f"{told_ending}, truly {expected.ending or 'well'}"


def _hidden(evidence: list[Row], truth: Truth) -> str:
    """Batches made while nobody waited: mean over the ranks."""
    known = [rank for rank in truth.ranks.values() if rank.loading_ns >= 0]
    reported = next((e["amount_ns"] for e in evidence if e.get("kind") == "loading"), None)
    if reported is None or not known:
        return ""
    true_ns = sum(r.loading_ns * r.steps_count for r in known) / sum(r.steps_count for r in known)
    step_ns = sum(r.step_ns for r in known) / len(known)
    if abs(reported - true_ns) <= _OF_FIGURE * true_ns + _OF_STEP * step_ns:
        return ""
    return f"loading {reported / 1e6:.3g} ms, truly {true_ns / 1e6:.3g} ms"


def _sources(kind: str, reported: set[str], truth: Truth, expected: Expected) -> str:
    several = truth.ranks_count > 1
    if kind == "measured":
        loads = any(
            rank.columns["data"].low_ns > 0 for t in (truth, *truth.beside.values()) for rank in t.ranks.values()
        )
        wanted = {"files"} | ({"data"} if loads else set()) | ({"link, late"} if several else set())
        lacking, wrong = wanted - reported, reported - {"files", "data"} - ({"link, late"} if several else set())
    elif kind == "inferred":
        wanted = {"begin of gloo's transfers"} if several else set()
        lacking, wrong = wanted - reported, reported - wanted - {"network by what transfers inside a host take"}
    else:
        wanted = {"MPI calls"} if expected.calls_unseen else set()
        gpus = {name for name in reported if name.startswith("GPU (")}
        # Short as it is, a job without a loop may end before the first look at the CPUs.
        lacking, wrong = wanted - reported, reported - wanted - gpus - (set() if truth.ranks else {"CPU contention"})
        lacking |= set() if gpus else {"GPU"}
    return "; ".join([*(f"{name} not named" for name in sorted(lacking)), *(f"{name} named" for name in sorted(wrong))])


def _files(evidence: list[Row], truth: Truth) -> str:
    """Of files whose use the job notes, calls and bytes; others are the interpreter's."""
    if not truth.files:
        return ""
    named = {e["name"]: e["items_count"] for e in evidence if e["code"] == "file_calls"}
    for path, (calls, _) in truth.files.items():
        if path not in named:
            return f"{path} is not among the files that took longest"
        if not calls <= named[path] <= calls + 4:  # besides what moves data: two closes, one truncation, one unlink
            return f"{named[path]} calls on {path}, truly {calls}"
    whole = next(e for e in evidence if e["code"] == "io_calls")
    moved = sum(size for _, size in truth.files.values())
    return "" if moved <= whole["moved_bytes"] <= 1.5 * moved else f"{whole['moved_bytes']} bytes, truly {moved}"
