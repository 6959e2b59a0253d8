"""Compare a run with what its job says of itself. Called by gpu_job.py; needs the package and numpy, no device."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_jobs
import numpy as np

import stashtrace
from stashtrace.schema.kinds import Bracket, CollectiveOp

#: Between the events around a graph and the kernels inside may lie this much: the graph's start, and the events.
EXTRA_US = (-5.0, 60.0)
#: What a device's moment may lie outside of its host window, in addition to the error that the clocks claim.
MARGIN_NS = 20_000
#: No operation of NCCL between two processes is done sooner.
INSTANT_NS = 1_000


def check(run: Path, truth: Path) -> dict[str, Any]:
    """Compare a run with the truth of `device_job` (a file) or of `nccl_rank` (its folder); figures and problems."""
    trace = stashtrace.load(run)
    clocks = trace.device_clocks["error_ns"]
    found: dict[str, Any] = {
        "losses": [{name: str(value) for name, value in row.items()} for row in trace.losses.rows()][:20],
        "clock_error_ns": int(clocks.max()) if len(clocks) else None,
    }
    if truth.is_dir():
        ranks = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(truth.glob("rank*.json"))]
        problems = list(check_ranks(trace, ranks, found))
    else:
        problems = list(check_device(trace, json.loads(truth.read_text(encoding="utf-8")), found))
    return {"problems": problems, **found}


def check_device(trace: stashtrace.Trace, truth: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """Fill `found` and say what differs from the truth."""
    brackets, steps_count = trace.device_brackets, truth["steps"]
    of_kind = {code: brackets.take(brackets["bracket_code"] == code) for code in Bracket}
    graphs, copies = of_kind[Bracket.GRAPH], of_kind[Bracket.COPY]
    for name, rows, expected in (
        ("graphs", graphs, steps_count),
        ("copies", copies, 2 * steps_count),
        ("waits", of_kind[Bracket.STREAM_WAIT], steps_count),
    ):
        timed = int((rows["end_ns"] >= 0).sum())
        found[name] = {"recorded": len(rows), "timed": timed, "expected": expected}
        if (len(rows), timed) != (expected, expected):
            yield f"{name}: {len(rows)} recorded, {timed} of them timed, {expected} expected"
    sizes = sorted({int(size) for size in copies["size_bytes"]})
    if sizes != sorted((truth["pinned_bytes"], truth["pageable_bytes"])):
        yield f"copies: sizes {sizes}"
    marked = len(stashtrace.analyze(trace, "steps"))
    if marked != steps_count - 1:  # a step lies between two marks
        yield f"steps: {marked} between {steps_count} marks"
    if lost := sum(row["lost_count"] for row in trace.losses.rows()):
        yield f"losses: {lost} rows"
    if found["clock_error_ns"] is None:
        yield "clocks: the device's clock was not aligned"
    if len(graphs) == steps_count:
        kernels_ns = np.array(truth["stamped_ns"]) + truth["second_ns"]
        extra_us = np.sort((graphs["end_ns"] - graphs["begin_ns"] - kernels_ns) / 1e3)
        median_us = round(float(np.median(extra_us)), 1)
        found["graph_minus_kernels_us"] = {
            "least": round(float(extra_us[0]), 1),
            "median": median_us,
            "most": round(float(extra_us[-1]), 1),
        }
        if not EXTRA_US[0] <= median_us <= EXTRA_US[1]:
            yield f"graphs: {median_us} us more between the events than in the kernels by their stamps"
    pinned = copies.take((copies["size_bytes"] == truth["pinned_bytes"]) & (copies["end_ns"] > copies["begin_ns"]))
    if len(pinned):
        rates = pinned["size_bytes"] / (pinned["end_ns"] - pinned["begin_ns"])
        found["pinned_copy_gb_per_s"] = round(float(np.median(rates)), 1)


def check_ranks(trace: stashtrace.Trace, ranks: list[dict[str, Any]], found: dict[str, Any]) -> Iterator[str]:
    """Fill `found` and say what differs from the truth."""
    if not ranks or len(ranks) != ranks[0]["ranks"]:
        yield f"ranks: {len(ranks)} came to their end"
        return
    ranks_count, steps_count = len(ranks), ranks[0]["steps"]
    found["nccl_version"] = ranks[0]["nccl_version"]
    per_step = {"ALL_REDUCE": 2, "ALL_GATHER": 1, "REDUCE_SCATTER": 1, "SEND": ranks_count, "RECEIVE": ranks_count}
    table = trace.collectives
    margin_ns = MARGIN_NS + (found["clock_error_ns"] or 0)
    found["operations"] = {}
    # Before 2.31, NCCL's stamps are of other operations after a message to oneself, so the recorder leaves them out.
    found["stamps_left_out"] = "stamps_shifted" in {trace.text(code) for code in trace.losses["name_code"].tolist()}
    for rank in range(ranks_count):
        own = table.take(table["rank"] == rank)
        own = own.take(np.argsort(own["call_ns"], kind="stable"))
        timed = own["device_end_ns"] >= 0
        for op, count in per_step.items():
            here = own["op_code"] == CollectiveOp[op]
            counts = {"recorded": int(here.sum()), "timed": int((here & timed).sum()), "expected": count * steps_count}
            found["operations"][f"rank {rank} {op.lower()}"] = counts
            if counts["recorded"] != counts["expected"]:
                yield f"rank {rank}: {counts['recorded']} of {counts['expected']} operations {op.lower()} recorded"
        if len(own) != steps_count * sum(per_step.values()):
            continue
        yield from misplaced(own, timed, rank, steps_count, margin_ns)
        if instant := int((timed & (own["device_end_ns"] - own["device_begin_ns"] < INSTANT_NS)).sum()):
            yield f"rank {rank}: {instant} operations are said to take less than {INSTANT_NS} ns"
        # Operations of a communicator that is not blocking have no separate begin.
        if rank != ranks_count - 1 and not found["stamps_left_out"] and ranks[rank].get("blocking", True):
            yield from unseen_lateness(own, rank, steps_count)


def misplaced(
    own: stashtrace.Table, timed: np.ndarray[Any, Any], rank: int, steps_count: int, margin_ns: int
) -> Iterator[str]:
    """Say which operations of a rank the device cannot have run when it is said to: stamps of others.

    Each step ends with a wait for the stream, so an operation runs between its call and the first call of the next
    step, and after the operation before.
    """
    calls_ns = own["call_ns"].reshape(steps_count, -1)
    next_step_ns = np.repeat(np.append(calls_ns[1:, 0], np.iinfo("i8").max - margin_ns), calls_ns.shape[1])
    early = timed & (own["device_begin_ns"] < own["call_ns"] - margin_ns)
    late = timed & (own["device_end_ns"] > next_step_ns + margin_ns)
    alone = own.take(timed & (own["peer_rank"] < 0))
    overlapping = alone["device_begin_ns"][1:] < alone["device_end_ns"][:-1] - margin_ns
    for what, wrong in (("before their call", early), ("after their step", late), ("during another", overlapping)):
        if count := int(wrong.sum()):
            yield f"rank {rank}: {count} operations are timed {what}"


def unseen_lateness(own: stashtrace.Table, rank: int, steps_count: int) -> Iterator[str]:
    """Say if a rank was not seen to wait in the first operation of the steps in which the last one is late."""
    per_step = len(own) // steps_count
    every = gpu_jobs.LATE_EVERY
    first = own.take(np.arange(every - 1, steps_count, every) * per_step)
    seen = first.take(first["device_end_ns"] >= 0)
    if not len(seen):
        yield f"rank {rank}: none of the operations that waited for the late rank is timed"
        return
    waited_s = float(np.median(seen["device_end_ns"] - seen["device_begin_ns"])) / 1e9
    if waited_s < gpu_jobs.LATE_S / 2:
        yield f"rank {rank}: waited {waited_s * 1e3:.1f} ms for a rank that was {gpu_jobs.LATE_S * 1e3:g} ms late"
