"""Templates of what to change first: one for each quantity of ``first_changes``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stashtrace.errors import guarded
from stashtrace.schema.table import Table
from stashtrace.summary.words.template_parts import Row
from stashtrace.units import duration_text, percent_text, range_text, ranks_text

#: Kind of work of a late rank -> its words.
_WORK = {
    "compute": "its computation",
    "prep": "the preparation of its batches",
    "fetch": "its waits for storage",
    "handoff": "the hand-off of its batches",
    "checkpoint": "its checkpoints",
    "launch": "the work of its host",
    "sync": "the work of its host",
    "python": "its code of the loop",
    "compile": "its compilations",
    "h2d": "its copies",
    "straggler": "its waits for other ranks",
    "network": "its transfers between hosts",
    "interconnect": "its transfers inside a host",
    "other": "its time asleep or blocked",
    "unrecorded": "its time without records",
}
_SAVES = {"sure": "saves", "likely": "likely saves", "perhaps": "may save up to"}


def first_texts(table: Table, path: str) -> list[str]:
    """Word the rows of ``first_changes``; ``path`` is that of the run, for the command that predicts each change."""
    return [first_text(row, path) for row in table.rows()]


def first_rows(table: Table, path: str) -> list[dict[str, Any]]:
    """Return these rows with their ``text``, for JSON."""
    return [{**row, "text": first_text(row, path)} for row in table.rows()]


def first_text(row: Row, path: str) -> str:
    """Word one change: what to do, what it saves and how sure that is, and the command that predicts it."""
    return guarded(f"the change {row['change']}", lambda: _first_text(row, path), str)


def _first_text(row: Row, path: str) -> str:
    if row["reason"]:
        return str(row["reason"])
    quantity, _, value = row["change"].partition("=")
    saved_ns = duration_text(row["saved_high_ns"])
    share = percent_text(row["high_ratio"])
    if row["sure"] != "perhaps":
        saved_ns = range_text(duration_text(row["saved_low_ns"]), saved_ns)
        share = range_text(percent_text(row["low_ratio"]), share)
    saves = f"{_SAVES[row['sure']]} {share} of a step ({saved_ns})"
    where = f", mostly in {row['place']}" if row["place"] else ""
    return f"{_DO[quantity](row, value)}{where}: {saves}; `stashtrace whatif {path} {row['change']}`"


def _workers(row: Row, value: str) -> str:
    return f"set num_workers={value} instead of {row['present_count']}"


def _straggler(row: Row, value: str) -> str:
    if row["rank"] >= 0:
        work = f" ({_WORK[row['kind']]})" if row["kind"] in _WORK else ""
        return f"make rank {row['rank']} as quick as the others{work}"
    if ":" in row["kind"]:
        ranks: dict[str, list[int]] = {}
        for part in row["kind"].split(","):
            rank, _, kind = part.partition(":")
            ranks.setdefault(kind, []).append(int(rank))
        named = [
            f"{_WORK[kind].replace('its', 'the', 1)} of rank{'s' if len(of) > 1 else ''} {ranks_text(sorted(of))}"
            for kind, of in ranks.items()
        ]
        return f"shorten what makes ranks late: {' and '.join(named)}"
    by = f", mostly by {_WORK[row['kind']]}" if row["kind"] in _WORK else ""
    return f"make the steps of all ranks alike: now one and now another comes last{by}"


def _slow_worker(row: Row, value: str) -> str:
    if row["worker_id"] < 0:
        return "have no worker take longer for its batches than the others"
    of_rank = f" of rank {row['rank']}" if row["rank"] >= 0 else " of each rank"
    return f"make the batches of worker {row['worker_id']}{of_rank} as quick as those of the other workers"


#: Quantity of a change -> what a person would do.
_DO: dict[str, Callable[[Row, str], str]] = {
    "workers": _workers,
    "persistent_workers": lambda row, value: "keep the workers from one epoch to the next (persistent_workers=True)",
    "slow_worker": _slow_worker,
    "in_order": lambda row, value: (
        "take batches as they become ready (in_order=False of DataLoader, torch 2.6 or newer)"
    ),
    "straggler": _straggler,
    "bucket_mb": lambda row, value: f"set bucket_cap_mb={value} of DistributedDataParallel",
    "prep": lambda row, value: "halve the time that a batch takes to prepare",
    "fetch": lambda row, value: "do without waits for storage in reads and opens of files (data in memory)",
    "checkpoint": lambda row, value: (
        "let no step wait for checkpoints that are saved and loaded"
        if row["kind"] == "loads"
        else "write checkpoints in the background, so that no step waits for one"
    ),
    "launch": lambda row, value: "halve the host's time between launches (CUDA graphs or torch.compile may)",
    "h2d": lambda row, value: "halve the copies between host and device",
    "python": lambda row, value: "halve the code of the loop outside forward, backward and optimizer",
    "compile": lambda row, value: (
        "compile nothing again in the steps (torch._dynamo.mark_dynamic, dynamic=True, or inputs padded to few sizes)"
    ),
    "objects": lambda row, value: (
        "exchange no Python objects in the steps (all_gather_object and the like): tensors, or seldom"
    ),
    "other": lambda row, value: "do without the sleeps and blocking calls of the step threads",
    "compute": lambda row, value: (
        "make the computation twice as quick"
        + ("" if row["sure"] == "perhaps" else " (nothing else is sure to save 3 %)")
    ),
    "network.bandwidth": lambda row, value: "double the bandwidth between hosts, or halve the bytes sent over it",
    "network.latency": lambda row, value: "halve the latency between hosts",
    "interconnect.bandwidth": lambda row, value: (
        "halve the bytes that ranks exchange" + (" (gradients in 16 bits)" if row["kind"] == "gradients" else "")
    ),
    "interconnect.latency": lambda row, value: "halve the latency between ranks of a host",
}
