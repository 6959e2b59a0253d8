"""Where in a transfer over hosts and inside them the network's part ends: as proxies saw it, else as an estimate.

    last enter                                end           proxies      [=== in flight ===]..............
        |----------- transfer -----------------|            estimate     transfer - what it takes inside a host
        |---- network ----|-- interconnect ----|

The estimate is the time of the same operation and size between as many ranks as share a host in the group: by the
machine's calibration (``stashtrace calibrate``), else by the run's collectives that stay inside a host. Where
neither knows it, nothing is cut.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import INSIDE, MIXED, group_table, known_columns, places
from stashtrace.analysis.intervals import NEVER, Bools, Int64, int64
from stashtrace.calibration.file import Calibration, find_calibration, host_names
from stashtrace.calibration.fit_link import fit_alpha_beta
from stashtrace.calibration.robust_line import Floats
from stashtrace.errors import FormatError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

#: Sizes up to this far outside the measured ones are still estimated by them.
_NEAR = 2.0
#: Of so few sizes, each answers for itself; more carry a line.
_TOO_FEW_SIZES = 2
#: Half width of the bounds in standard errors, and the scatter of normal values per width between quartiles.
_BOUND_ERRORS, _SCATTER_PER_RANGE = 2.0, 1 / 1.349


#: Columns of ``matched_collectives`` that keep the cuts.
KEPT = ("network_low_ns", "network_point_ns", "network_high_ns", "network_estimated")


@dataclass(frozen=True, slots=True)
class NetworkCuts:
    """Columns parallel to ``trace.collectives``."""

    #: When the network's part is over: not before, as the budget takes it, at the latest; -1 where nobody knows.
    low_ns: Int64
    point_ns: Int64
    high_ns: Int64
    #: True where proxies did not say it.
    estimated: Bools


def network_cuts(trace: Trace, link: Int64, enter_ns: Int64, end_ns: Int64, network_ns: Int64) -> NetworkCuts:
    """Cut the transfers of groups that span hosts and share some.

    ``trace``: its collectives are the rows of all columns. ``link``: of each row's group. ``enter_ns``, ``end_ns``:
    when the last rank that a row waits for, and itself, had entered; when it ended, ``NEVER`` if unknown.
    ``network_ns``: how long its proxies had bytes in flight, -1 if none was seen.
    """
    count = len(link)
    if len(trace.matched_collectives):
        unknown = dict.fromkeys(KEPT[:3], np.full(count, -1)) | {KEPT[3]: np.zeros(count, dtype=np.int64)}
        low, point, high, recorded = known_columns(trace.matched_collectives, trace.collectives, unknown)
        return NetworkCuts(low, point, high, recorded > 0)
    low, point, high = (np.full(count, -1, dtype=np.int64) for _ in range(3))
    mixed, whole = link == MIXED, (end_ns < NEVER) & (enter_ns < NEVER) & (end_ns >= enter_ns)
    proxied = mixed & (network_ns >= 0) & (enter_ns < NEVER)
    estimated = mixed & ~proxied
    # Where inside the transfer the bytes were between hosts is not known, only for how long: laid at its begin.
    for column in (low, point, high):
        column[proxied] = (enter_ns + network_ns)[proxied]
    rows = np.flatnonzero(estimated & whole)
    if len(rows):
        moved = np.where(whole & (link == INSIDE), end_ns - enter_ns, -1)
        inside, error = _inside_times(trace, rows, moved)
        known = inside >= 0
        rows, inside = rows[known], np.minimum(inside[known], (end_ns - enter_ns)[rows[known]])
        slack = np.rint(_BOUND_ERRORS * error[known]).astype(np.int64)
        point[rows] = end_ns[rows] - int64(np.rint(inside))
        low[rows] = np.maximum(point[rows] - slack, enter_ns[rows])
        high[rows] = np.minimum(point[rows] + slack, end_ns[rows])
    return NetworkCuts(low, point, high, estimated)


def backends_of_rows(trace: Trace) -> npt.NDArray[np.str_]:
    """Backend of each row's group: ``gloo``, ``nccl``; empty if unknown. Of several, NCCL where a device was timed."""
    groups, table = trace.groups, trace.collectives
    names = {int(h): trace.text(c).lower() for h, c in zip(groups["group_hash"], groups["backend_code"], strict=True)}
    backends = GroupBy(table["group_hash"]).map(lambda group: names.get(group, ""), np.str_)
    mixed = np.char.find(backends, ":") >= 0  # cpu:gloo,cuda:nccl
    return np.where(mixed, np.where(table["device_begin_ns"] >= 0, "nccl", "gloo"), backends)


def _inside_times(trace: Trace, rows: Int64, moved_ns: Int64) -> tuple[Floats, Floats]:
    """Return the time of each row between the ranks that share a host, and its standard error; -1 if unknown."""
    table, backends = trace.collectives, backends_of_rows(trace)
    groups, of_ranks, by_group = group_table(trace), places(trace), GroupBy(table["group_hash"])

    def most_on_a_host(group: int) -> int:
        members = groups[group].members.tolist()
        return max(Counter(of_ranks[r] for r in members if r in of_ranks).values(), default=1)

    sizes = by_group.map(lambda group: len(groups[group].members))
    calibration = calibration_of_machine(trace)
    out, error = np.full(len(rows), -1.0), np.zeros(len(rows))
    kinds = GroupBy(table["op_code"][rows], by_group.map(most_on_a_host)[rows], backends[rows])
    for op, ranks, backend, chosen in kinds.items():
        if ranks < 2 or op not in CollectiveOp.__members__.values():
            continue
        wanted = table["message_bytes"][rows[chosen]]
        similar = (table["op_code"] == op) & (sizes == ranks) & (backends == backend)
        similar &= (moved_ns > 0) & (table["message_bytes"] > 0)
        times = _share_by_calibration(calibration, op, wanted, ranks, backend)
        if times is None:
            times = _share_by_fit(table["message_bytes"][similar], moved_ns[similar], wanted)
        out[chosen], error[chosen] = times
    return out, error


def calibration_of_machine(trace: Trace) -> Calibration | None:
    """Return the calibration next to the run, unless it is another machine's or damaged."""
    try:
        calibration = find_calibration(trace.path.split(os.pathsep)) if trace.path else None
    except FormatError:
        return None
    return None if calibration is None or calibration.is_foreign(host_names(trace)) else calibration


def _share_by_calibration(
    calibration: Calibration | None, op: int, sizes: Int64, ranks: int, backend: str
) -> tuple[Floats, Floats] | None:
    if calibration is None:
        return None
    answer = calibration.expected(CollectiveOp(op).name.lower(), sizes, ranks=ranks, backend=backend or None)
    if answer is None or answer.extrapolated.any():
        return None
    return answer.time_ns, answer.error_ns


def _share_by_fit(sizes: Int64, times_ns: Int64, wanted: Int64) -> tuple[Floats, Floats]:
    """Time and error of each wanted size by a line through the medians per size; of few sizes, by the same size."""
    time, error = np.full(len(wanted), -1.0), np.zeros(len(wanted))
    by_size = GroupBy(sizes)
    known = by_size.values
    if not len(known):
        return time, error
    quartiles = np.array([np.quantile(times_ns[rows], (0.25, 0.5, 0.75)) for rows in by_size])
    if len(known) > _TOO_FEW_SIZES:
        fit = fit_alpha_beta(known, quartiles[:, 1])
        near = (wanted <= _NEAR * known[-1]) & (wanted * _NEAR >= known[0])
        fitted, off = fit.expected(wanted)
        return np.where(near, fitted, -1.0), off
    at = by_size.find(wanted)
    scatter = (quartiles[:, 2] - quartiles[:, 0]) * _SCATTER_PER_RANGE
    return np.where(at >= 0, quartiles[at, 1], -1.0), scatter[at]
