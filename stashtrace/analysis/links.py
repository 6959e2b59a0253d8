"""links: which way the bytes of collectives went, by counters that know nothing of collectives.

Per place and path: bytes of each sample window = background rate * length + sum over classes of share * expected bytes
of the class in the window. A class is a communicator and an operation; its share is what this path carried of each
byte that had to be moved.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.link_paths import (
    Doubles,
    Expected,
    Place,
    Samples,
    expected_traffic,
    moved_until,
    sampled_paths,
)
from stashtrace.analysis.timeset import TimeSet
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import CollectiveOp
from stashtrace.model.schemas import LINKS
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Classes of a place that get a share of their own; those with fewer expected bytes share one, which is not reported.
_MOST_CLASSES = 8
#: A class needs so many windows with some of its bytes, and a fit so many windows more than it has unknowns.
_FEWEST_WINDOWS = 5
#: What of a class the others do not explain: below, its share cannot be told from theirs.
_LEAST_OWN = 0.05
#: Standard error of a share up to which it is called good, and fair.
_GOOD, _FAIR = 0.05, 0.2
#: An interface of a host is listed if it moved at least this part of what was expected of a class.
_WORTH_A_ROW = 0.01

_Class = tuple[int, int]


@dataclass(slots=True)
class _Found:
    """One class on one path, over all places."""

    expected: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    windows: int = 0
    collectives: int = 0
    problems: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Coefficient and standard error of each column, and whether it is more than a mix of the others."""

    share: Doubles
    error: Doubles
    separate: np.ndarray


def links(trace: Trace) -> Table:
    """Estimate which path carried the bytes of collectives: NVLink, PCIe, an RDMA port or a network interface.

    Expected bytes follow the bus-bandwidth factors: for n ranks and an input of S bytes a rank sends 2 (n-1)/n S in an
    all-reduce ((n+1)/n S if NCCL says that the switch reduces), (n-1) S in an all-gather, (n-1)/n S in
    reduce-scatter, all-to-all, broadcast and reduce. Barriers, gathers, scatters and unknown operations have no
    expected bytes. They are spread evenly from the entry of the last rank to the end. Bytes of a path are the mean
    of both directions. Least squares over the windows between samples, with a background rate, per device or host;
    shares of places are averaged by expected bytes. Standard errors allow for noise that is unequal (HC1) or lasts for
    some windows (Newey-West).

    ``confidence`` is good (standard error up to 0.05), fair (up to 0.2) or weak; ``upper bound`` where the class fills
    every window alike, so that nothing tells it from a steady background and all traffic counts as its own (more
    samples a second help); ``not enough samples`` where too few windows hold it; ``not separable`` where another class
    always comes with it. Shares of a class add up to 1 if every path was sampled and NCCL moved what the factors say;
    PCIe holds the hop to a NIC, so the two may both be near 1.

    Parameters
    ----------
    trace : Trace
        Needs collectives, and counters of the collector nvml or proc.

    Columns
    -------
    communicator, op, path, places_count, collectives_count, expected_bytes, seen_bytes, share_ratio, error_ratio,
    windows_count, confidence

    Raises
    ------
    MissingDataError
        If no collective or no counter of bytes was recorded.
    """
    if len(trace.collectives) == 0:
        raise MissingDataError("no collective was recorded", hint="run more than one rank")
    paths = sampled_paths(trace)
    if not paths:
        raise MissingDataError(
            "no counter of bytes on links was sampled",
            hint="run with the collectors nvml and proc, longer than a second",
        )
    expected = expected_traffic(trace)
    found: dict[tuple[_Class, str], _Found] = {}
    for (place, path), samples in sorted(
        paths.items(), key=lambda item: (item[0][0].kind, item[0][0].name, item[0][1])
    ):
        _join(expected, place, path, samples, found)
    rows = []
    names = {int(h): trace.text(c) for h, c in zip(trace.groups["group_hash"], trace.groups["name_code"], strict=True)}
    for ((group, op), path), each in found.items():
        total, seen = sum(each.expected), sum(each.seen)
        if path.startswith(("net ", "rdma ")) and seen < _WORTH_A_ROW * total:
            continue
        share, error, confidence = _combined(each)
        rows.append(
            (names.get(group) or f"group {group:x}", CollectiveOp(op).name.lower(), path, len(each.expected),
             each.collectives, round(total), round(seen), share, error, each.windows, confidence)
        )  # fmt: skip
    rows.sort(key=lambda row: (-row[5], row[0], row[1], row[2]))
    columns = zip(*rows, strict=True) if rows else [[] for _ in LINKS.names]
    return Table(LINKS, {name: np.array(list(column)) for name, column in zip(LINKS.names, columns, strict=True)})


def _join(
    expected: Expected, place: Place, path: str, samples: Sequence[Samples], found: dict[tuple[_Class, str], _Found]
) -> None:
    """Fit one path of one place and add what it says to each class."""
    sampled = [(expected.end_ns > part.edges[0]) & (expected.begin_ns < part.edges[-1]) for part in samples]
    here = expected.at(place) & np.logical_or.reduce(sampled)
    keys = list(zip(expected.group[here].tolist(), expected.op[here].tolist(), strict=True))
    if not keys:
        return
    begin, end, amount = expected.begin_ns[here], expected.end_ns[here], expected.sent_bytes[here]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    of_class = np.array([number[key] for key in keys])
    weight = np.bincount(of_class, weights=amount)
    own = sorted(number.values(), key=lambda i: -weight[i])[:_MOST_CLASSES]
    columns = [_per_window(samples, begin, end, amount, of_class == i) for i in own]
    rest = ~np.isin(of_class, own)
    if rest.any():
        columns.append(_per_window(samples, begin, end, amount, rest))
    columns.append(np.concatenate([np.diff(part.edges) for part in samples]).astype(np.float64))
    moved = np.concatenate([np.diff(part.total) for part in samples])
    with_background = _fit(np.stack(columns, axis=1), moved)
    without = _fit(np.stack(columns[:-1], axis=1), moved)
    for key, i in number.items():
        if i not in own:
            continue
        at = own.index(i)
        chosen, filled = of_class == i, int((columns[at] > 0).sum())
        busy = TimeSet.of(begin[chosen], end[chosen])
        each = found.setdefault((key, path), _Found())
        each.expected.append(float(columns[at].sum()))
        each.seen.append(sum(float((part.until(busy.end) - part.until(busy.begin)).sum()) for part in samples))
        each.collectives += int(chosen.sum())
        each.windows += filled
        share, error = np.nan, np.nan
        if filled < _FEWEST_WINDOWS or len(moved) < len(columns) + _FEWEST_WINDOWS:
            each.problems.add("not enough samples")
        elif with_background.separate[at]:
            share, error = with_background.share[at], with_background.error[at]
        elif without.separate[at]:
            share, error = without.share[at], without.error[at]
            each.problems.add("upper bound")
        else:
            each.problems.add("not separable")
        each.share.append(float(share))
        each.error.append(float(error))


def _per_window(
    samples: Sequence[Samples], begin: np.ndarray, end: np.ndarray, amount: Doubles, chosen: np.ndarray
) -> Doubles:
    return np.concatenate(
        [np.diff(moved_until(part.edges, begin[chosen], end[chosen], amount[chosen])) for part in samples]
    )


def _fit(columns: Doubles, moved: Doubles) -> _Fit:
    """Least squares; standard errors for unequal noise (HC1) and for noise that lasts (Newey-West): the larger."""
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    x = columns / scale
    inverse = np.linalg.pinv(x.T @ x)
    coefficient = inverse @ (x.T @ moved)
    residual = moved - x @ coefficient
    spare = max(len(moved) - x.shape[1], 1)
    score = x * residual[:, None]
    plain = score.T @ score
    lasting = plain.copy()
    lags = int(4 * (len(moved) / 100) ** (2 / 9)) + 1
    for lag in range(1, min(lags, len(moved) - 1) + 1):
        moment = score[lag:].T @ score[:-lag]
        lasting += (1 - lag / (lags + 1)) * (moment + moment.T)
    variance = np.maximum(np.diag(inverse @ plain @ inverse), np.diag(inverse @ lasting @ inverse))
    error = np.sqrt(np.maximum(variance, 0.0) * (len(moved) / spare))
    # Columns have length 1 here, so this is the part of each that the others do not explain.
    own = 1.0 / np.maximum(np.diag(inverse), 1e-12)
    full = bool(np.linalg.matrix_rank(x) == x.shape[1])
    return _Fit(coefficient / scale, error / scale, (own >= _LEAST_OWN) & full)


def _combined(each: _Found) -> tuple[float, float, str]:
    """Share over all places, weighted by expected bytes; -1 if most of the bytes have none."""
    expected, share, error = (np.array(values) for values in (each.expected, each.share, each.error))
    known = ~np.isnan(share) & (expected > 0)
    if expected[known].sum() <= 0.5 * expected.sum():
        return -1.0, -1.0, min(each.problems - {"upper bound"}, default="not enough samples")
    weight = expected[known] / expected[known].sum()
    total = float(np.sqrt(((weight * error[known]) ** 2).sum()))
    confidence = "good" if total <= _GOOD else "fair" if total <= _FAIR else "weak"
    if "upper bound" in each.problems:
        confidence = "upper bound"
    return float((weight * share[known]).sum()), total, confidence
