"""link_efficiency: the transfers of a run compared with the calibrated speed of the machine's links."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.collectives.matching import INSIDE, group_table
from stashtrace.analysis.collectives.shares import backends_of_rows
from stashtrace.analysis.devices.work import one_of
from stashtrace.analysis.intervals import Int64
from stashtrace.calibration.file import Calibration, calibration_of
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.calibration.robust_line import Floats
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK_OR_ALL, schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

LINK_EFFICIENCY = schema(
    "link_efficiency",
    "Transfers of collectives by size, beside what a calibration says the link can do",
    RANK_OR_ALL,
    col.number("step", "ordinal of the step, -1 for all and outside steps", missing=-1),
    col.word("communicator", "name of the group", detail=2),
    col.word("op", "CollectiveOp in lower case"),
    col.number("group_size", "ranks that took part"),
    col.nbytes("message_bytes", "payload of one rank's input"),
    col.number("calls_count", "rows of collectives summed up"),
    col.ns("transfer_ns", "median transfer, without waiting for the last rank"),
    col.real("bus_bytes_per_s", "bytes over the busiest link by the median transfer, 0 if it took no time"),
    col.ns("expected_ns", "what the calibration expects, -1 if it does not say", missing=-1, detail=6),
    col.ns("error_ns", "standard error of that, -1 if it does not say", missing=-1),
    col.real("efficiency_ratio", "expected by measured: 1 as calibrated, less is slower, -1 if unknown", missing=-1),
    col.word("method", "calibration, extrapolated, crosses_hosts, not_calibrated or none", detail=7),
)

#: Source of the expected time, or why there is none; worst last, so that a group of rows takes the largest.
METHODS = ("calibration", "extrapolated", "crosses_hosts", "not_calibrated", "none")
_CALIBRATED, _EXTRAPOLATED, _CROSSES, _UNCALIBRATED, _NONE = range(len(METHODS))


@dataclass(frozen=True, slots=True)
class ExpectedTransfers:
    """Columns beside ``trace.collectives``, row by row."""

    #: Expected transfer time and its standard error, -1 where unknown.
    expected_ns: Floats
    error_ns: Floats
    #: Index into :data:`METHODS`.
    method: Int64


def link_efficiency(
    trace: Trace,
    *,
    calibration: Calibration | str | os.PathLike[str] | None = None,
    by: Literal["run", "rank", "step"] = "run",
) -> Table:
    """Compare the transfers of collectives with what the link did when it was calibrated.

    One row per communicator, operation and message size. ``efficiency_ratio`` is expected by measured time: 0.9 is
    90 % of what the link can do. The median transfer counts, from the last rank's entry to the end. Groups over several
    hosts have no expected time, because a calibration covers one host; neither have other backends or numbers of ranks
    than the calibrated ones (``method`` says which).

    Parameters
    ----------
    trace : Trace
        Needs collectives.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory; without one there are no expected times.
    by : {"run", "rank", "step"}
        Rows over the run, per rank, or per rank and step.

    Columns
    -------
    rank, step, communicator, op, group_size, message_bytes, calls_count, transfer_ns, bus_bytes_per_s, expected_ns,
    error_ns, efficiency_ratio, method

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    FormatError
        If the calibration is damaged.

    Warns
    -----
    ForeignCalibrationWarning
        If it was measured on another machine.
    """
    one_of("by", by, "run", "rank", "step")
    times = collective_rows(trace)
    expected = expected_transfers(trace, calibration_of(trace, calibration))
    nothing = np.full(len(times), -1, dtype=np.int64)
    columns = {
        "rank": times["rank"] if by != "run" else nothing,
        "step": times["step"] if by == "step" else nothing,
        "communicator": times["communicator"],
        "op": times["op"],
        "group_size": _sizes_and_links(trace)[0],
        "message_bytes": times["bytes"],
    }
    moved = times["bytes"] > 0
    return _sum_rows(
        {name: values[moved] for name, values in columns.items()},
        times["transfer_ns"][moved],
        expected.expected_ns[moved],
        expected.error_ns[moved],
        expected.method[moved],
    )


def expected_transfers(trace: Trace, calibration: Calibration | None) -> ExpectedTransfers:
    """Return how long the transfer of every collective should take.

    ``trace``: any. ``calibration``: as :func:`calibration_of` finds it.
    """
    table = trace.collectives
    expected, error = np.full(len(table), -1.0), np.full(len(table), -1.0)
    method = np.full(len(table), _NONE, dtype=np.int64)
    if calibration is None or len(table) == 0:
        return ExpectedTransfers(expected, error, method)
    method[:] = _UNCALIBRATED
    sizes, links = _sizes_and_links(trace)
    for op, ranks, backend, rows in GroupBy(table["op_code"], sizes, backends_of_rows(trace)).items():
        if op not in CollectiveOp.__members__.values() or ranks < 2:
            continue
        answer = calibration.expected(
            CollectiveOp(op).name.lower(), table["message_bytes"][rows], ranks=ranks, backend=backend or None
        )
        if answer is not None:
            expected[rows], error[rows] = answer.time_ns, answer.error_ns
            method[rows] = np.where(answer.extrapolated, _EXTRAPOLATED, _CALIBRATED)
    away = (links != INSIDE) & (method <= _EXTRAPOLATED)
    expected[away] = error[away] = -1.0
    method[away] = _CROSSES
    return ExpectedTransfers(expected, error, method)


def _sizes_and_links(trace: Trace) -> tuple[Int64, Int64]:
    """Return the number of members of each row's group, and its link."""
    groups, by_group = group_table(trace), GroupBy(trace.collectives["group_hash"])
    return by_group.map(lambda group: len(groups[group].members)), by_group.map(lambda group: groups[group].link)


def _sum_rows(keys: dict[str, np.ndarray], transfer: Int64, expected: Floats, error: Floats, method: Int64) -> Table:
    if len(transfer) == 0:
        return Table.empty(LINK_EFFICIENCY)
    alike = GroupBy(*keys.values())
    median = alike.median(transfer)
    first = alike.argmin(transfer)
    chosen = dict(zip(keys, alike.keys, strict=True))
    known = expected[first] > 0
    messages = zip(*(chosen[n].tolist() for n in ("op", "group_size", "message_bytes")), strict=True)
    carried = np.array([bus_bytes(*message) for message in messages], dtype=np.float64)
    return Table(
        LINK_EFFICIENCY,
        {
            **chosen,
            "calls_count": alike.sizes,
            "transfer_ns": median,
            "bus_bytes_per_s": np.where(median > 0, carried / np.maximum(median, 1) * 1e9, 0.0),
            "expected_ns": np.where(known, np.rint(expected[first]), -1).astype(np.int64),
            "error_ns": np.where(known, np.rint(error[first]), -1).astype(np.int64),
            "efficiency_ratio": np.where(known & (median > 0), expected[first] / np.maximum(median, 1), -1.0),
            "method": np.array(METHODS)[alike.max(method)],
        },
    )
