"""Templates of causes: what to do about each, and what that saves."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from stashtrace.errors import guarded
from stashtrace.schema.table import Table
from stashtrace.summary.words.template_parts import Row
from stashtrace.units import duration_text, percent_text, range_text, ranks_text

#: Kind of work -> its words behind "its", "their" or "the".
_WORK = {
    "compute": "computation",
    "prep": "preparation of batches",
    "fetch": "waits for storage",
    "handoff": "hand-off of batches",
    "checkpoint": "checkpoints",
    "loads": "checkpoints",
    "launch": "work of the host",
    "sync": "work of the host",
    "python": "code of the loop",
    "compile": "compilations",
    "objects": "collectives of objects",
    "h2d": "copies",
    "straggler": "waits for other ranks",
    "other": "time asleep or blocked",
    "gil": "waits for the GIL",
    "unrecorded": "time without records",
}
#: What need not be done, or not while the step waits for it.
_GONE = {
    "other": "do without the sleeps and blocking calls",
    "gil": "have no other thread hold the GIL (Python code of its own, in this process)",
    "checkpoint": "write checkpoints in the background, so that no step waits for one",
    "loads": "let no step wait for checkpoints that are saved and loaded",
    "fetch": "do without waits for storage in reads and opens of files (data in memory)",
    "compile": "compile nothing again in the steps (torch._dynamo.mark_dynamic, dynamic=True, or inputs padded to few"
    " sizes)",
    "objects": "exchange no Python objects in the steps (all_gather_object and the like): tensors, or seldom",
}
_HALF = {
    "compute": "bound by computation: no other change is predicted to save 3 %; half of it",
    "python": "halve the code of the loop outside forward, backward and optimizer",
    "prep": "halve the time that a batch takes to prepare",
    "launch": "halve the host's time between launches (CUDA graphs or torch.compile may)",
    "h2d": "halve the copies between host and device",
}
_SETTINGS = {
    "persistent_workers": "keep the workers from one epoch to the next (persistent_workers=True)",
    "in_order": "take batches as they become ready (in_order=False of DataLoader, torch 2.6 or newer)",
}
_NEARLY_ALL = 0.9
_SAVES = {"sure": "saves", "likely": "likely saves", "perhaps": "may save up to"}


def cause_texts(table: Table, path: str) -> list[str]:
    """Word the rows of ``causes``; ``path`` is that of the run, for the command that predicts a setting."""
    return [cause_text(row, path) for row in table.rows()]


def cause_rows(table: Table, path: str) -> list[dict[str, Any]]:
    """Return these rows with their ``text``, for JSON."""
    return [{**row, "text": cause_text(row, path)} for row in table.rows()]


def cause_text(row: Row, path: str) -> str:
    """Word one cause: what to do, where and when, what that saves and how sure that is."""
    return guarded("a cause", lambda: _cause_text(row, path), str)


def _cause_text(row: Row, path: str) -> str:
    if row["reason"]:
        return str(row["reason"])
    saved, share = duration_text(row["saved_high_ns"]), percent_text(row["high_ratio"])
    if row["sure"] != "perhaps":
        saved = range_text(duration_text(row["saved_low_ns"]), saved)
        share = range_text(percent_text(row["low_ratio"]), share)
    saves = f"{_SAVES[row['sure']]} {share} of a step ({saved})"
    command = f"; `stashtrace whatif {path} {row['change']}`" if row["change"] else ""
    return f"{_do(row)}{_when(row)}: {saves}{command}"


def _do(row: Row) -> str:
    """Return what a person would do, and where."""
    kind, place = row["kind"], _place(row)
    whose = f"on {_ranks(row['ranks'])}: " if row["ranks"] else ""
    if row["where"] == "setting":
        return _setting(row)
    if row["where"] == "link":
        operation = row["op"].replace("_", "-") or "transfers"
        if row["level"] == "gone":
            return f"do without the {operation} of each step (of buffers: broadcast_buffers=False)"
        fewer = "gradients in 16 bits" if kind == "gradients" else "fewer bytes"
        return f"spend half as long in {operation} ({fewer}, or fewer operations)"
    if row["level"] == "gone":
        without = _GONE.get(kind, f"do without the {_WORK.get(kind, 'work')}")
        return f"{whose}{without}{place}"
    if row["level"] == "peers":
        of_workers = " of its workers" if row["where"] == "worker" and kind != "prep" else ""
        work = f" ({_WORK[kind]}{of_workers})" if kind in _WORK else ""
        return f"make {_ranks(row['ranks'])} as quick as the others{work}{place}"
    if row["level"] == "usual":
        return f"{whose}shorten the {_WORK.get(kind, 'work')}{place}"
    return f"{_HALF.get(kind, f'halve the {_WORK.get(kind, kind)}')}{place}"


def _place(row: Row) -> str:
    if not row["place"]:
        return ""
    return f", {'' if row['place_ratio'] > _NEARLY_ALL else 'mostly '}in {row['place']}"


def _ranks(ranks: str) -> str:
    numbers = [int(rank) for rank in ranks.split(",")]
    return f"rank{'s' if len(numbers) > 1 else ''} {ranks_text(numbers)}"


def _when(row: Row) -> str:
    """Return in which steps it is, if that is not each."""
    if row["level"] == "half":
        return ""
    if row["every_count"] > 1:
        return f", in every {_ordinal(row['every_count'])} step ({duration_text(row['event_ns'])} there)"
    few = 0 < 2 * row["steps_count"] <= row["of_steps_count"]
    if not few:
        return ""
    each = duration_text(row["event_ns"])
    if row["steps_count"] == 1:
        return f", once in {row['of_steps_count']} steps ({each})"
    return f", in {row['steps_count']} of {row['of_steps_count']} steps ({each} each)"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{ending}"


def _setting(row: Row) -> str:
    quantity, _, value = row["change"].partition("=")
    if quantity == "workers":
        return f"set num_workers={value} instead of {row['present_count']}"
    if quantity == "bucket_mb":
        return f"set bucket_cap_mb={value} of DistributedDataParallel"
    if quantity == "slow_worker":
        if row["worker_id"] < 0:
            return "have no worker take longer for its batches than the others"
        of_rank = f" of rank {row['ranks']}" if row["ranks"] else " of each rank"
        return f"make the batches of worker {row['worker_id']}{of_rank} as quick as those of the other workers"
    return _SETTINGS[quantity]
