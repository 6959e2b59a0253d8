"""What a run says of the user's functions, for a comparison with another run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.compare.function_times import (
    ALL_RANKS,
    IN_STEP,
    IN_WORKER,
    OWN_KINDS,
    FunctionGroup,
    FunctionsOfRun,
    FunctionTime,
    LineTime,
)
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.lines.function_means import FunctionMeans, function_means, spent_ns
from stashtrace.analysis.lines.place_times import STEP, WHERES, WORKER, PlaceTimes, is_of_others, place_times
from stashtrace.analysis.lines.user_frames import USERS, owners
from stashtrace.analysis.steps.step_time import step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.trace import Trace


def functions_of_run(trace: Trace) -> FunctionsOfRun | None:
    """Return the time of the user's functions in the steps that the step time of a run is made of, and in batches.
    None if no stack was recorded in these steps. Raises MissingDataError if no rank has steps."""
    times = place_times(trace)
    if times is None:
        return None
    counted = step_time_steps(find_steps(trace))
    in_step = (times.where == WHERES.index(STEP)) & (
        GroupBy(counted["rank"], counted["step"]).find(times.rank, times.step) >= 0
    )
    if not (times.place[in_step] >= 0).any():
        return None
    found = _Groups(trace, times)
    steps_count = len(np.unique(counted["step"]))
    for kind, chosen in _by_kind(times, in_step):
        found.add(IN_STEP, kind, [ALL_RANKS], chosen, times.step, [steps_count], len(counted) / steps_count)
    ranks = GroupBy(counted["rank"])
    if len(ranks) > 1:
        own = in_step & ~is_of_others(times, times.rank, times.kind)
        column = ranks.find(times.rank)
        found.add(IN_STEP, OWN_KINDS, ranks.values.tolist(), own, times.step, ranks.sizes.tolist(), 1.0, column)
    length_ns = {IN_STEP: float(times.whole_ns[in_step].sum()) / len(counted)}
    batches_count = int((times.window_where == WHERES.index(WORKER)).sum())
    if batches_count:
        in_worker = times.where == WHERES.index(WORKER)
        # The numbers of batches begin again on each rank, and its last batch is no neighbour of the next rank's first.
        batch = times.step + times.rank * (int(times.step[in_worker].max()) + 2)
        length_ns[IN_WORKER] = float(times.whole_ns[in_worker].sum()) / batches_count
        for kind, chosen in _by_kind(times, in_worker):
            found.add(IN_WORKER, kind, [ALL_RANKS], chosen, batch, [batches_count], 1.0)
    return FunctionsOfRun(tuple(found.groups), length_ns, _seen(trace))


def _by_kind(times: PlaceTimes, chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Return the amounts of each kind of time."""
    for kind in np.unique(times.kind[chosen]).tolist():
        yield StallKind(kind).name.lower(), chosen & (times.kind == kind)


def _seen(trace: Trace) -> frozenset[tuple[str, str]]:
    """Return the functions of the user that stood in a stack."""
    frames, own = trace.frames, owners(trace) == USERS
    functions = GroupBy(frames["name_code"][own], frames["path_code"][own])
    return frozenset((trace.text(name), trace.text(path)) for name, path in zip(*functions.keys, strict=True))


class _Groups:
    """Groups of functions, made one after the other."""

    def __init__(self, trace: Trace, times: PlaceTimes) -> None:
        self.groups: list[FunctionGroup] = []
        self._trace, self._times = trace, times
        self._functions = GroupBy(times.places.function_code, times.places.path_code)

    def add(
        self,
        where: str,
        kind: str,
        ranks: Sequence[int],
        chosen: npt.NDArray[np.bool_],
        step: Int64,
        windows_count: Sequence[int],
        ranks_count: float,
        column: Int64 | None = None,
    ) -> None:
        """Add a group for each column: of ``windows_count`` steps, the mean over ``ranks_count`` ranks."""
        times, counts = self._times, np.array(windows_count, dtype=np.int64)
        at = np.zeros(len(times.rank), dtype=np.int64) if column is None else column
        number = self._functions.number
        means = function_means(times, chosen, number, at, step, counts, ranks_count=ranks_count)
        lines = self._lines(chosen, at, counts * ranks_count)
        rows = [np.flatnonzero(means.mean[:, place]).tolist() for place in range(len(ranks))]
        for place, rank in enumerate(ranks):
            functions = tuple(self._function(means, row, place, lines) for row in rows[place])
            unknown_ns, sample_ns = (max(float(of[place]), 0.0) for of in (means.unknown, means.of_sample))
            degrees = float(max(windows_count[place] - 1, 1))
            self.groups.append(FunctionGroup(where, kind, rank, unknown_ns, sample_ns, degrees, functions))

    def _function(
        self, means: FunctionMeans, row: int, column: int, lines: dict[tuple[int, int], dict[int, list[LineTime]]]
    ) -> FunctionTime:
        number = int(means.functions[row])
        name, path = (self._trace.text(int(codes[number])) for codes in self._functions.keys)
        own = []
        for line, parts in sorted(lines[column, number].items()):
            leaf = max(parts, key=lambda part: part.time_ns).leaf
            own.append(LineTime(line, leaf, sum(part.time_ns for part in parts)))
        mean, error, degrees = (float(of[row, column]) for of in (means.mean, means.error, means.degrees))
        return FunctionTime(name, path, mean, error, degrees, tuple(own))

    def _lines(
        self, chosen: npt.NDArray[np.bool_], column: Int64, count: npt.NDArray[np.floating]
    ) -> dict[tuple[int, int], dict[int, list[LineTime]]]:
        """Return the time of the leaves of each line, by column and function."""
        times, places = self._times, self._times.places
        names = ("kind", "place", "whole_ns", "exact_ns", "unseen_ns", "samples_count")
        rows = {name: getattr(times, name)[chosen] for name in names}
        spent, known = spent_ns(rows, column[chosen]), rows["place"] >= 0
        by_place = GroupBy(column[chosen][known], rows["place"][known])
        found: dict[tuple[int, int], dict[int, list[LineTime]]] = {}
        for at, place, time_ns in zip(*by_place.keys, by_place.sum(spent[known]), strict=True):
            line = int(places.line[place])
            part = LineTime(line, self._trace.text(int(places.leaf_code[place])), float(time_ns) / float(count[at]))
            of_function = found.setdefault((int(at), int(self._functions.number[place])), {})
            of_function.setdefault(line, []).append(part)
        return found
