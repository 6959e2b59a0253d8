"""Sentences of evidence about a rank's device: its copies, who blocks on it, how far the host leads, what its link did.

Used by ``findings``. What brackets cannot know is said as a bound.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings

import numpy as np

from stashtrace.analysis.collectives import collective_rows
from stashtrace.analysis.link_efficiency import calibration_of, expected_transfers
from stashtrace.analysis.matching import group_table
from stashtrace.analysis.timeset import Int64, TimeSet
from stashtrace.errors import ForeignCalibrationWarning, FormatError
from stashtrace.model.kinds import SYNCHRONISING_CALLS, Bracket, BracketFlag, CopyDirection, DeviceCall
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.models.alpha_beta import bus_bytes
from stashtrace.models.calibration import Calibration
from stashtrace.report.facts import RankFacts
from stashtrace.units import bytes_text, duration_text, percent_text

_CALL_NAMES = {
    DeviceCall.STREAM_SYNCHRONIZE: "cudaStreamSynchronize (also .item() and .cpu())",
    DeviceCall.DEVICE_SYNCHRONIZE: "cudaDeviceSynchronize",
    DeviceCall.EVENT_SYNCHRONIZE: "cudaEventSynchronize",
    DeviceCall.COPY: "blocking copies",
}
_BETWEEN = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST, CopyDirection.UNKNOWN)
_FEW = 2


def copies(trace: Trace, rank: RankFacts, steps: Table) -> list[str]:
    """What was copied between host and device a step, how fast, and how much of it from pageable memory."""
    brackets = trace.device_brackets
    chosen = (brackets["rank"] == rank.rank) & (brackets["bracket_code"] == Bracket.COPY) & (brackets["begin_ns"] >= 0)
    mine = brackets.take(chosen & np.isin(brackets["copy_code"], _BETWEEN))
    mine = mine.take(_inside(mine["begin_ns"], rank, steps) & (mine["size_bytes"] > 0))
    lines = []
    pageable = (mine["bracket_flags"] & BracketFlag.PAGEABLE) != 0
    for rows, memory, advice in (
        (mine.take(pageable), "pageable", ": pin_memory=True in the DataLoader or tensor.pin_memory() would pin them"),
        (mine.take(~pageable), "pinned", ""),
    ):  # fmt: skip
        if not len(rows):
            continue
        whole = float(rows["size_bytes"].sum())
        spent = float(np.maximum(rows["end_ns"] - rows["begin_ns"], 1).sum())
        many = _count(len(rows) / max(rank.steps_count, 1))
        lines.append(
            f"{memory} copies: {many} a step, {bytes_text(whole / max(rank.steps_count, 1))} at"
            f" {bytes_text(whole / spent * 1e9)}/s{advice}"
        )
    return lines


def blocking_calls(trace: Trace, rank: RankFacts, steps: Table) -> list[str]:
    """Which call blocked the host on the device, on which thread, how often and how long."""
    calls = trace.device_calls
    mine = calls.take((calls["rank"] == rank.rank) & np.isin(calls["call_code"], SYNCHRONISING_CALLS))
    mine = mine.take(_inside(mine["begin_ns"], rank, steps))
    names = _track_names(trace)
    found: list[tuple[float, str]] = []
    pairs = np.stack((mine["call_code"], mine["track_id"]))
    for code, track in np.unique(pairs, axis=1).T.tolist():
        chosen = (mine["call_code"] == code) & (mine["track_id"] == track)
        spent = float((mine["end_ns"] - mine["begin_ns"])[chosen].sum()) / max(rank.steps_count, 1)
        often = _count(int(chosen.sum()) / max(rank.steps_count, 1))
        where = names.get(track) or "an unnamed thread"
        called = f"{_CALL_NAMES[DeviceCall(code)]} on {where}: {often} a step, {duration_text(spent)} inside"
        found.append((spent, called))
    return [text for _, text in sorted(found, reverse=True)[:_FEW]]


def host_functions(trace: Trace, rank: RankFacts, steps: Table) -> list[str]:
    """On which streams the host ran functions of the job's, how often and how long."""
    brackets = trace.device_brackets
    chosen = (brackets["rank"] == rank.rank) & (brackets["bracket_code"] == Bracket.HOST_FUNCTION)
    mine = brackets.take(chosen & (brackets["begin_ns"] >= 0))
    mine = mine.take(_inside(mine["begin_ns"], rank, steps))
    names = _track_names(trace)
    found: list[tuple[float, str]] = []
    for track in np.unique(mine["track_id"]).tolist():
        held = mine.take(mine["track_id"] == track)
        spent = float((held["end_ns"] - held["begin_ns"]).sum()) / max(rank.steps_count, 1)
        often = _count(len(held) / max(rank.steps_count, 1))
        where = names.get(track) or "an unnamed stream"
        found.append((spent, f"functions on the host: {often} a step on {where}, {duration_text(spent)} inside"))
    return [text for _, text in sorted(found, reverse=True)[:_FEW]]


def host_lead(trace: Trace, rank: RankFacts, steps: Table) -> list[str]:
    """How far ahead of its device the host is when it records events there."""
    brackets = trace.device_brackets
    kinds = (Bracket.MARK, Bracket.STEP, Bracket.BATCH_WAIT)
    chosen = (brackets["rank"] == rank.rank) & np.isin(brackets["bracket_code"], kinds) & (brackets["begin_ns"] >= 0)
    mine = brackets.take(chosen)
    lead = (mine["begin_ns"] - mine["call_ns"])[_inside(mine["begin_ns"], rank, steps)]
    if not len(lead):
        return []
    typical = duration_text(max(float(np.median(lead)), 0.0))
    return [f"the host leads its device by {typical} in the median of {len(lead)} events; near 0 it starves the device"]


def bus_bandwidth(trace: Trace, rank: RankFacts, steps: Table) -> list[str]:
    """Bandwidth of the collectives with most transfer time once all ranks were in, and what the link can do.

    As NCCL's tests count it. On a rank without a device only where a calibration lies beside the run.
    """
    if not len(trace.collectives):
        return []
    calibration = _calibration(trace)
    table, times = trace.collectives, collective_rows(trace)
    known = np.full(len(table), True) if calibration is not None else table["device_begin_ns"] >= 0
    moved = (times["transfer_ns"] > 0) & (table["message_bytes"] > 0)
    rows = np.flatnonzero((table["rank"] == rank.rank) & known & moved)
    rows = rows[_inside(times["begin_ns"][rows], rank, steps)]
    if not len(rows):
        return []
    op, spent = times["op"][rows], times["transfer_ns"][rows]
    worst = max(np.unique(op).tolist(), key=lambda name: int(spent[op == name].sum()))
    rows, spent = rows[op == worst], spent[op == worst]
    sizes = {h: len(g.members) for h, g in group_table(trace).items()}
    messages = zip(table["message_bytes"][rows].tolist(), table["group_hash"][rows].tolist(), strict=True)
    carried = sum(bus_bytes(worst, sizes[group], size) for size, group in messages)
    reached = bytes_text(carried / float(spent.sum()) * 1e9)
    line = f"{worst.replace('_', '-')} reached {reached}/s of bus bandwidth over {len(rows)} transfers"
    expected = expected_transfers(trace, calibration).expected_ns[rows]
    if (expected > 0).all():
        share = percent_text(float(expected.sum()) / float(spent.sum()))
        line += f", {share} of what calibration found this link to do"
    return [line]


def _calibration(trace: Trace) -> Calibration | None:
    """The calibration beside the run, unless it is another machine's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForeignCalibrationWarning)
        try:
            return calibration_of(trace)
        except (ForeignCalibrationWarning, FormatError):
            return None


def agreement_line(table: Table) -> str:
    """How far brackets and kernels differ, in one sentence; empty if no step has both."""
    if not len(table):
        return ""
    steps = len(np.unique(table["step"]))
    kinds, row = np.unique(table["kind"], return_inverse=True)
    pairs = len(np.unique(np.stack((table["rank"], table["step"])), axis=1).T)
    off = np.bincount(row, np.abs(table["difference_ratio"])) / pairs
    worst = int(off.argmax())
    many = f"{steps} step{'' if steps == 1 else 's'}"
    return (
        f"brackets agree with the kernels of {many} to {percent_text(float(off[worst]))} of the step"
        f" (worst kind: {kinds[worst]})"
    )


def _track_names(trace: Trace) -> dict[int, str]:
    tracks = trace.tracks
    return {t: trace.text(n) for t, n in zip(tracks["track_id"].tolist(), tracks["name_code"].tolist(), strict=True)}


def _inside(moments: Int64, rank: RankFacts, steps: Table) -> np.ndarray:
    own = steps.take(steps["rank"] == rank.rank)
    window = TimeSet.of(own["begin_ns"], own["end_ns"])
    inside: np.ndarray = window.within(moments, moments + 1) > 0
    return inside


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"
