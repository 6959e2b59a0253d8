"""The line in which slow steps of a rank spent what they took longer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.lines.lines import CostlyLine
from stashtrace.analysis.lines.place_times import STEP, WHERES, PlaceTimes, place_times
from stashtrace.calibration.noise import wilson
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.trace import Trace


def line_of_steps(trace: Trace, rank: int, kind: str, steps: Int64) -> CostlyLine | None:
    """Return the line that takes up most of what a kind of time is longer in some steps of a rank than in the others.

    Times are means of one of these steps beyond the mean of the others, shares are of what the kind is longer. None
    without Python functions, or where no call and no sample was in a line then.
    """
    times = place_times(trace)
    if times is None:
        return None
    own = (times.rank == rank) & (times.where == WHERES.index(STEP)) & (times.kind == StallKind[kind.upper()])
    slow = own & np.isin(times.step, steps)
    others = own & ~slow
    longer_ns = _mean(times, slow, times.whole_ns) - _mean(times, others, times.whole_ns)
    if longer_ns <= 0:
        return None
    place, low_ns, high_ns = _times_of_lines(times, slow)
    if not len(place):
        return None
    usual_place, usual_low_ns, usual_high_ns = _times_of_lines(times, others)
    usual = GroupBy(usual_place)
    at = usual.find(place)
    low_ns = np.maximum(low_ns - np.append(usual.sum(usual_high_ns), 0.0)[at], 0.0)
    high_ns = np.minimum(high_ns - np.append(usual.sum(usual_low_ns), 0.0)[at], longer_ns)
    best = int((low_ns + high_ns).argmax())
    row = int(np.flatnonzero(times.places.line_number == place[best])[0])
    low, high = float(low_ns[best]), max(float(high_ns[best]), float(low_ns[best]))
    codes = times.places
    return CostlyLine(
        trace.text(int(codes.function_code[row])),
        trace.text(int(codes.path_code[row])),
        int(codes.line[row]),
        "",
        kind,
        time_ns=round((low + high) / 2),
        low_ns=round(low),
        high_ns=round(high),
        share_low=low / longer_ns,
        share_high=min(high / longer_ns, 1.0),
        exact=1.0 if low == high else 0.0,
    )


def _mean(times: PlaceTimes, chosen: npt.NDArray[np.bool_], amount: Int64) -> float:
    """Return the mean of an amount over the steps in which it occurs."""
    return float(amount[chosen].sum()) / max(len(np.unique(times.step[chosen])), 1)


def _times_of_lines(
    times: PlaceTimes, chosen: npt.NDArray[np.bool_]
) -> tuple[Int64, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the lines of some amounts and the bounds of their time in a mean step."""
    known = chosen & (times.place >= 0)
    count = max(len(np.unique(times.step[chosen])), 1)
    lines = GroupBy(times.places.line_number[times.place[known]])
    exact, samples = lines.sum(times.exact_ns[known]), lines.sum(times.samples_count[known])
    unseen = int(times.unseen_ns[chosen].sum())
    rest = int(times.whole_ns[chosen].sum() - times.exact_ns[chosen].sum()) - unseen
    all_samples = np.full(len(samples), times.samples_count[chosen].sum())
    low, high = wilson(samples, all_samples)
    return lines.values, (exact + rest * low) / count, (exact + unseen + rest * high) / count
