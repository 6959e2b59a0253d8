"""Evidence about a rank's device: copies, calls that block on it, the lead of the host, the bandwidth of its link."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings

import numpy as np

from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.findings.batch_making import inside
from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.analysis.findings.summary_input import RankFacts
from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.analysis.links.efficiency import expected_transfers
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.idle_calls import idle_calls
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.calibration.file import Calibration
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.calibration.of_run import calibration_of
from stashtrace.errors import ForeignCalibrationWarning, FormatError
from stashtrace.schema.kinds import Bracket, BracketFlag, CopyDirection, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

_BETWEEN = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST, CopyDirection.UNKNOWN)
_FEW = 2
#: Idle times of a device that its host did not cause (``RankLayers.beside``).
_IDLE_REASONS = ("before_first", "launched_before", "pauses")
#: Calls explain a stall if they cover at least this share of it.
_EXPLAINS_RATIO = 0.25
#: A device was idle in a call, not only from it on, if that holds for this share of the time.
_MOSTLY_RATIO = 0.95


def copies(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return copies between host and device per step: bytes, rate, and the part from pageable memory."""
    brackets = trace.device_brackets
    chosen = (brackets["rank"] == rank.rank) & (brackets["bracket_code"] == Bracket.COPY) & (brackets["begin_ns"] >= 0)
    mine = brackets.take(chosen & np.isin(brackets["copy_code"], _BETWEEN))
    mine = mine.take(_inside(mine["begin_ns"], rank, steps) & (mine["size_bytes"] > 0))
    pageable = (mine["bracket_flags"] & BracketFlag.PAGEABLE) != 0
    rows = []
    for memory, own in (("pageable", mine.take(pageable)), ("pinned", mine.take(~pageable))):
        if not len(own):
            continue
        whole = float(own["size_bytes"].sum())
        spent = float(np.maximum(own["end_ns"] - own["begin_ns"], 1).sum())
        rows.append(
            Evidence(
                "copies",
                "device_brackets",
                rank=rank.rank,
                kind=memory,
                part_ratio=_per_step(len(own), rank),
                moved_bytes=_per_step(whole, rank),
                rate_bytes_per_s=whole / spent * 1e9,
            )
        )
    return rows


def blocking_calls(trace: Trace, rank: RankFacts, stall_ns: float, *, warmup: bool) -> list[Evidence]:
    """Return the calls that blocked the host while the device was idle, with their thread and time per step.

    A call that covers less than a quarter of the stall is not evidence; if none covers more, one row states that the
    stall is not explained. With ``stall_ns`` 0, no call is expected to explain it and there are no rows.
    """
    if stall_ns <= 0:
        return []
    table = idle_calls(trace, warmup=warmup)
    names = _track_names(trace)
    rows = []
    for row in np.flatnonzero(table["rank"] == rank.rank).tolist():
        during, after = max(table["idle_ns"][row], table["possible_ns"][row]), table["drained_ns"][row]
        covered = _per_step(float(max(during, after)), rank)
        rows.append(
            Evidence(
                "blocking_call" if during >= _MOSTLY_RATIO * after else "draining_call",
                "idle_calls",
                row,
                rank=rank.rank,
                amount_ns=covered,
                part_ratio=_per_step(int(table["calls_count"][row]), rank),
                kind=str(table["call"][row]),
                name=names.get(int(table["track_id"][row]), ""),
            )
        )
    longest = sorted(rows, key=lambda row: -row.amount_ns)
    worth = [row for row in longest if row.amount_ns >= _EXPLAINS_RATIO * stall_ns]
    return worth[:_FEW] or [Evidence("not_explained", "idle_calls", rank=rank.rank)]


def idle_reasons(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return why a device was idle where its host was not the reason, longest first; nothing for other ranks."""
    index = TraceIndex(trace)
    for thread, own in ranks_and_steps(index.origin, steps):
        if thread.rank != rank.rank:
            continue
        made, inside_steps = rank_layers(index, thread), TimeSet.of_rows(own)
        idle = made.time_of(StallKind.OTHER, StallKind.LAUNCH) & inside_steps
        spent = {name: (made.beside.get(name, TimeSet.empty()) & idle).total_ns for name in _IDLE_REASONS}
        rows = [
            Evidence(name, "stalls", rank=rank.rank, amount_ns=_per_step(ns, rank)) for name, ns in spent.items() if ns
        ]
        return sorted(rows, key=lambda row: -row.amount_ns)
    return []


def host_functions(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return the streams on which the host ran functions of the job, how often and how long."""
    brackets = trace.device_brackets
    chosen = (brackets["rank"] == rank.rank) & (brackets["bracket_code"] == Bracket.HOST_FUNCTION)
    mine = brackets.take(chosen & (brackets["begin_ns"] >= 0))
    mine = mine.take(_inside(mine["begin_ns"], rank, steps))
    names = _track_names(trace)
    rows = []
    for track in np.unique(mine["track_id"]).tolist():
        held = mine.take(mine["track_id"] == track)
        spent = _per_step(float((held["end_ns"] - held["begin_ns"]).sum()), rank)
        rows.append(
            Evidence(
                "host_function",
                "device_brackets",
                rank=rank.rank,
                amount_ns=spent,
                part_ratio=_per_step(len(held), rank),
                name=names.get(track, ""),
            )
        )
    return sorted(rows, key=lambda row: -row.amount_ns)[:_FEW]


def host_lead(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return how far ahead of its device the host is when it records events there."""
    brackets = trace.device_brackets
    kinds = (Bracket.MARK, Bracket.STEP, Bracket.BATCH_WAIT)
    chosen = (brackets["rank"] == rank.rank) & np.isin(brackets["bracket_code"], kinds) & (brackets["begin_ns"] >= 0)
    mine = brackets.take(chosen)
    lead = (mine["begin_ns"] - mine["call_ns"])[_inside(mine["begin_ns"], rank, steps)]
    if not len(lead):
        return []
    typical = max(float(np.median(lead)), 0.0)
    return [Evidence("host_lead", "device_brackets", rank=rank.rank, amount_ns=typical, items_count=len(lead))]


def bus_bandwidth(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return the bandwidth of the collectives with most transfer time, and the part of what the link can do.

    Transfer begins when all ranks have entered; bandwidth is counted as in NCCL's tests. A rank without a device needs
    a calibration in the run directory.
    """
    if not len(trace.collectives):
        return []
    calibration, table = _calibration(trace), trace.collectives
    known = np.full(len(table), True) if calibration is not None else table["device_begin_ns"] >= 0
    known &= (table["rank"] == rank.rank) & (table["message_bytes"] > 0)
    if not known.any():
        return []
    times = collective_rows(trace)
    rows = np.flatnonzero(known & (times["transfer_ns"] > 0))
    rows = rows[_inside(times["begin_ns"][rows], rank, steps)]
    if not len(rows):
        return []
    op, spent = times["op"][rows], times["transfer_ns"][rows]
    worst = max(np.unique(op).tolist(), key=lambda name: int(spent[op == name].sum()))
    rows, spent = rows[op == worst], spent[op == worst]
    sizes = {h: max(len(g.members), g.size) for h, g in group_table(trace).items()}
    if any(sizes[group] < 2 for group in np.unique(table["group_hash"][rows]).tolist()):
        return []  # how many ranks shared the bytes is not known
    messages = zip(table["message_bytes"][rows].tolist(), table["group_hash"][rows].tolist(), strict=True)
    carried = sum(bus_bytes(worst, sizes[group], size) for size, group in messages)
    expected = expected_transfers(trace, calibration).expected_ns[rows]
    share = float(expected.sum()) / float(spent.sum()) if (expected > 0).all() else -1.0
    return [
        Evidence(
            "bus_bandwidth",
            "collectives",
            rank=rank.rank,
            rate_bytes_per_s=carried / float(spent.sum()) * 1e9,
            items_count=len(rows),
            part_ratio=share,
            name=worst,
        )
    ]


def _calibration(trace: Trace) -> Calibration | None:
    """Return the calibration in the run directory, None if there is none or it is another machine's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForeignCalibrationWarning)
        try:
            return calibration_of(trace)
        except (ForeignCalibrationWarning, FormatError):
            return None


def _track_names(trace: Trace) -> dict[int, str]:
    tracks = trace.tracks
    return {t: trace.text(n) for t, n in zip(tracks["track_id"].tolist(), tracks["name_code"].tolist(), strict=True)}


def _inside(moments: Int64, rank: RankFacts, steps: Table) -> np.ndarray:
    return inside(moments, steps.take(steps["rank"] == rank.rank).sort_by("begin_ns"))


def _per_step(amount: float, rank: RankFacts) -> float:
    return amount / max(rank.steps_count, 1)
