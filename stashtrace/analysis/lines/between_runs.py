"""lines_between_runs: functions whose time changed between two jobs, with what chance would make of it.

    kinds of a step     before    after
    prep                |====|    |========|   changed: its functions are compared, of workers where these make batches
    other               |==|      |==|         within noise: none of its functions is
    straggler           |=|       |=====|      waits for a rank: what that rank does longer than before and than others

The principle is that of ``between_ranks``: bounds hold for all functions that are compared together. Where three runs
or more stand on a side, the spread of their means counts too; with fewer, the allowance of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.compare.change import CLEARLY_MORE, RUN_TO_RUN_RATIO, Side, variance_of_runs
from stashtrace.analysis.compare.cpu_use import OtherWork
from stashtrace.analysis.compare.diff import WORTH_NAMING_RATIO
from stashtrace.analysis.compare.function_times import (
    ALL_RANKS,
    IN_STEP,
    IN_WORKER,
    OWN_KINDS,
    FunctionGroup,
    FunctionsOfRun,
    FunctionTime,
)
from stashtrace.analysis.compare.gate_verdict import Gate, other_work
from stashtrace.analysis.lines.functions_of_run import CHANCE, line_that_changed, median_of_others, variance_from_others
from stashtrace.calibration.noise import errors_at
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK_OR_ALL, schema
from stashtrace.schema.groupby import order_by
from stashtrace.schema.kinds import IN_COLLECTIVES, LOADING_KINDS, StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.schema.table import Table

LINES_BETWEEN_RUNS = schema(
    "lines_between_runs",
    "Functions of the user in the kinds of time that changed between two jobs, by their own change",
    col.word("kind", "StallKind in lower case, one whose change is beyond its bounds"),
    RANK_OR_ALL,
    col.word("where", "step, or worker: then times are means of a batch", detail=4),
    col.word("function", "qualified name"),
    col.word("path", "its file, as the later run has it", width=48, detail=3),
    col.number(
        "line", "its line that changed most, as the later run has it; -1 if that is gone or unknown", missing=-1
    ),
    col.word(
        "leaf", "call of a library in which most of the line's time was; empty if it was the line itself", detail=3
    ),
    col.ns("before_ns", "mean of a step or batch over ranks and runs, or over the steps of the rank", detail=1),
    col.ns("after_ns", "the same of the second job", detail=1),
    col.ns("change_ns", "after minus before"),
    col.ns("low_ns", "it is not less than this, with 95 % confidence for all rows together"),
    col.ns("high_ns", "and not more than this"),
    col.word("verdict", "slower, faster or no difference"),
    col.word(
        "known_in",
        "both; after: it stood in no stack of the first job, as a new one; before: in none of the second",
        detail=5,
    ),
    col.rank(
        "most_rank",
        "rank that changed clearly more than the mean over ranks, -1 if none surely did",
        missing=-1,
        detail=5,
    ),
    col.ns("most_rank_change_ns", "its change over all its kinds, 0 if there is none", detail=5),
)
_NO_DIFFERENCE = "no difference"
_OTHERS_NAMES = {StallKind(kind).name.lower() for kind in IN_COLLECTIVES}
_WORKERS_NAMES = {StallKind(kind).name.lower() for kind in LOADING_KINDS}
#: Function that the lines of a file outside all functions are in.
_MODULE = "<module>"
_STRAGGLER = StallKind.STRAGGLER.name.lower()

#: Qualified name and end of the path.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Mean:
    """Time of a function on one side."""

    mean_ns: float
    #: Of its steps.
    error_ns: float
    degrees: float
    #: Of each run.
    values: tuple[float, ...]
    unknown_ns: float


@dataclass(frozen=True, slots=True)
class _Compared:
    """A function of a kind, or of a rank, before and after."""

    kind: str
    where: str
    rank: int
    key: Key
    before: _Mean
    after: _Mean

    @property
    def change_ns(self) -> float:
        return self.after.mean_ns - self.before.mean_ns

    def half_ns(self, chance: float, allowance_ns: float) -> float:
        """Return half of the interval of the change, without time whose function is unknown."""
        degrees = min(self.before.degrees, self.after.degrees)
        half = _errors(chance, degrees) * math.hypot(self.before.error_ns, self.after.error_ns)
        shares = sum(1 / len(side.values) for side in (self.before, self.after))
        variance, of_runs = variance_of_runs([np.array(side.values) for side in (self.before, self.after)])
        if not of_runs:
            return half + allowance_ns * math.sqrt(shares / 2)
        return max(half, _errors(chance, of_runs) * math.sqrt(variance * shares))


def lines_between_runs(
    before: Side, after: Side, changed: Sequence[str], *, allowance_ratio: float = 0.0
) -> Table | None:
    """Compare the time of each function of the user before and after, surely changed ones first.

    Functions are the same if they have one qualified name, and files of one name; of files of one name, the part of
    the path that tells them apart counts. A file that is only before counts as one that is only after, as its copy,
    if most of their functions have the same names (:func:`renamed_files`). A wait for a late rank (straggler) has
    the functions in which one rank became longer than before, and by more than the others did. Waits for the link,
    and what workers hand over, have none.

    ``before``, ``after``: runs with their functions. ``changed``: kinds whose own change is beyond their bounds.
    ``allowance_ratio``: by how much equal runs may differ beyond what their steps show, as a part of a step or batch;
    three runs on a side show it themselves. Returns None where a run has no functions. Columns: table
    ``lines_between_runs`` of ``docs/reference/tables.md``.
    """
    # A column of the summary is a sum of kinds that stand for themselves.
    changed = [kind for kind in changed if kind in KIND_NAMES]
    if not changed:
        return Table.empty(LINES_BETWEEN_RUNS)
    sides = [[run.functions for run in side.runs] for side in (before, after)]
    runs = [[one for one in side if one is not None] for side in sides]
    if [len(one) for one in runs] != [len(one) for one in sides]:
        return None
    keys = _Keys(runs)
    found = [one for kind in changed for one in _compared(runs, kind, keys)]
    if not found:
        return Table.empty(LINES_BETWEEN_RUNS)
    chance = CHANCE / 2 / len(found)
    differ = _differ_from_others(found, chance)
    held, by_rank = [keys.held_by(side) for side in runs], _ByRank(runs, keys, chance)
    rows = [
        _row(runs, one, keys, held, bounds, by_rank.most(one) if bounds.verdict != _NO_DIFFERENCE else (-1, 0.0))
        for at, one in enumerate(found)
        # Each function of each rank would be too much to show.
        if (bounds := _bounds(runs, one, chance, allowance_ratio, at in differ)).verdict != _NO_DIFFERENCE
        or one.rank == ALL_RANKS
    ]
    table = Table.from_rows(LINES_BETWEEN_RUNS, rows)
    return table.take(order_by(table["verdict"] == _NO_DIFFERENCE, -np.abs(table["change_ns"])))


class _Keys:
    """Which functions of several runs are one, though their commits lie in other folders."""

    def __init__(self, sides: Sequence[Sequence[FunctionsOfRun]]) -> None:
        paths: list[dict[tuple[str, str], set[str]]] = []
        for run in (run for side in sides for run in side):
            of_run: dict[tuple[str, str], set[str]] = {}
            for function, path in _functions_known(run):
                of_run.setdefault((function, _end(path, 1)), set()).add(path)
            paths.append(of_run)
        self._renamed = {new: old for old, new in renamed_files(*sides)}
        self._depth: dict[tuple[str, str], int] = {}
        for of_run in paths:
            for name, files in of_run.items():
                self._depth[name] = max(self._depth.get(name, 1), _depth_that_tells(files))

    def of(self, function: str, path: str) -> Key:
        """Return what a function is matched by."""
        if (name := _end(path, 1)) in self._renamed:
            return function, self._renamed[name]
        return function, _end(path, self._depth.get((function, _end(path, 1)), 1))

    def held_by(self, side: Sequence[FunctionsOfRun]) -> set[Key] | None:
        """Return the functions of the user that stood in a stack; None where that is not kept."""
        seen = [run.seen for run in side]
        return None if None in seen else {self.of(*one) for of_run in seen for one in of_run or ()}


def renamed_files(before: Sequence[FunctionsOfRun], after: Sequence[FunctionsOfRun]) -> list[tuple[str, str]]:
    """Return the names of files of which one is only before and one only after, and that hold the same functions.

    They share more than half of the functions of either that stood in stacks, by qualified name, and at least two,
    unless both have one alone. Of files of one name in several folders nothing is said.
    """
    old, new = (_functions_by_file(side) for side in (before, after))
    pairs = [
        (len(old[first] & new[second]), first, second)
        for first in old.keys() - new.keys()
        for second in new.keys() - old.keys()
        if _are_copies(old[first], new[second])
    ]
    found: list[tuple[str, str]] = []
    for _, first, second in sorted(pairs, reverse=True):
        if not any(first == one or second == other for one, other in found):
            found.append((first, second))
    return found


def _functions_by_file(side: Sequence[FunctionsOfRun]) -> dict[str, set[str]]:
    """Return the functions of each file by its name, without those whose path another file's could be."""
    functions: dict[str, set[str]] = {}
    paths: dict[tuple[int, str], set[str]] = {}
    for at, run in enumerate(side):
        for function, path in _functions_known(run):
            functions.setdefault(_end(path, 1), set()).add(function)
            paths.setdefault((at, _end(path, 1)), set()).add(path)
    several = {name for (_, name), of_run in paths.items() if len(of_run) > 1}
    return {name: held for name, held in functions.items() if name not in several}


def _are_copies(first: set[str], second: set[str]) -> bool:
    """Return whether two files hold the same functions, as far as stacks show it; every script has a module."""
    one, other = ((held - {_MODULE}) or held for held in (first, second))
    shared = len(one & other)
    return 2 * shared > min(len(one), len(other)) and (shared > 1 or len(one) == len(other) == 1)


def _functions_known(run: FunctionsOfRun) -> frozenset[tuple[str, str]]:
    """Return the name and path of each function that took time or stood in a stack."""
    known = {(one.function, one.path) for group in run.groups for one in group.functions}
    return (run.seen or frozenset()) | known


def _end(path: str, depth: int) -> str:
    return "/".join(path.split("/")[-depth:])


def _depth_that_tells(files: set[str]) -> int:
    """Return how many last parts of paths tell them apart.

    >>> _depth_that_tells({"/job/a/model.py"}), _depth_that_tells({"/job/a/model.py", "/job/b/model.py"})
    (1, 2)
    """
    longest = max(path.count("/") + 1 for path in files)
    return next(depth for depth in range(1, longest + 1) if len({_end(path, depth) for path in files}) == len(files))


def _compared(runs: Sequence[Sequence[FunctionsOfRun]], kind: str, keys: _Keys) -> list[_Compared]:
    """Return the functions whose change can be that of a kind."""
    if kind == _STRAGGLER:
        return [
            one
            for rank in sorted(_ranks_of_all(runs))
            for one in _of_group(runs, (kind, IN_STEP, OWN_KINDS, rank), keys)
        ]
    if kind in _OTHERS_NAMES:
        return []
    with_workers = {IN_WORKER in one.length_ns for side in runs for one in side}
    if kind not in _WORKERS_NAMES or with_workers == {False}:
        return _of_group(runs, (kind, IN_STEP, kind, ALL_RANKS), keys)
    return _of_group(runs, (kind, IN_WORKER, kind, ALL_RANKS), keys) if with_workers == {True} else []


def _of_group(
    runs: Sequence[Sequence[FunctionsOfRun]], which: tuple[str, str, str, int], keys: _Keys
) -> list[_Compared]:
    """Return the functions of a group. ``which``: the kind that changed, where, the kind of the group, its rank."""
    kind, where, group_kind, rank = which
    groups = [[one.group(where, group_kind, rank) for one in side] for side in runs]
    known: list[list[dict[Key, FunctionTime]]] = [
        [{keys.of(one.function, one.path): one for one in group.functions} for group in side] for side in groups
    ]
    names = sorted({key for side in known for group in side for key in group})
    means = [
        [_mean(groups_of_side, [of_run.get(key) for of_run in known_of_side]) for key in names]
        for groups_of_side, known_of_side in zip(groups, known, strict=True)
    ]
    return [
        _Compared(kind, where, rank, key, old, new) for key, old, new in zip(names, means[0], means[1], strict=True)
    ]


def _mean(groups: Sequence[FunctionGroup], functions: Sequence[FunctionTime | None]) -> _Mean:
    """Return the time of a function on one side; in a run without it, it may have taken one sample."""
    pairs = list(zip(groups, functions, strict=True))
    values = tuple(0.0 if one is None else one.mean_ns for one in functions)
    errors = [group.sample_ns if one is None else one.error_ns for group, one in pairs]
    degrees = min(group.degrees if one is None else one.degrees for group, one in pairs)
    count = len(groups)
    error_ns, unknown_ns = math.hypot(*errors) / count, sum(group.unknown_ns for group in groups) / count
    return _Mean(sum(values) / count, error_ns, degrees, values, unknown_ns)


def _differ_from_others(found: Sequence[_Compared], chance: float) -> set[int]:
    """Return which functions of single ranks changed by more than the other ranks did, and of all ranks all."""
    differ = {at for at, one in enumerate(found) if one.rank == ALL_RANKS}
    of_ranks = [at for at in range(len(found)) if at not in differ]
    ranks, names = (sorted({getattr(found[at], name) for at in of_ranks}) for name in ("rank", "key"))
    if len(ranks) < 2:
        return differ
    places = {at: (names.index(found[at].key), ranks.index(found[at].rank)) for at in of_ranks}
    change, error = np.zeros((len(names), len(ranks))), np.zeros((len(names), len(ranks)))
    for at, place in places.items():
        one = found[at]
        change[place], error[place] = one.change_ns, one.half_ns(chance, 0.0)
    beyond, half = change - median_of_others(change), np.sqrt(variance_from_others(error))
    sure = (np.abs(beyond) > half) & (np.sign(beyond) == np.sign(change))
    return differ | {at for at, place in places.items() if sure[place]}


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What is known of a change."""

    low_ns: float
    high_ns: float
    verdict: str


def _bounds(
    runs: Sequence[Sequence[FunctionsOfRun]], one: _Compared, chance: float, allowance_ratio: float, differs: bool
) -> _Bounds:
    length_ns = sum(run.length_ns[one.where] for run in runs[0]) / len(runs[0])
    half = one.half_ns(chance, allowance_ratio * length_ns)
    low, high = one.change_ns - one.before.unknown_ns - half, one.change_ns + one.after.unknown_ns + half
    verdict = "slower" if low > 0 else "faster" if high < 0 else _NO_DIFFERENCE
    if abs(one.change_ns) < WORTH_NAMING_RATIO * length_ns or not differs:
        verdict = _NO_DIFFERENCE
    return _Bounds(low, high, verdict)


def _row(
    runs: Sequence[Sequence[FunctionsOfRun]],
    one: _Compared,
    keys: _Keys,
    held: Sequence[set[Key] | None],
    bounds: _Bounds,
    most: tuple[int, float],
) -> tuple[object, ...]:
    group = one.where, one.kind if one.rank == ALL_RANKS else OWN_KINDS, one.rank
    old, new = (_newest(side, group, one.key, keys) for side in runs)
    shown = new or old
    assert shown is not None
    line, leaf = line_that_changed(old.lines if old else (), new.lines if new else ())
    return (
        one.kind,
        one.rank,
        one.where,
        shown.function,
        shown.path,
        line,
        leaf,
        round(one.before.mean_ns),
        round(one.after.mean_ns),
        round(one.change_ns),
        math.floor(bounds.low_ns),
        math.ceil(bounds.high_ns),
        bounds.verdict,
        _known_in(held, one.key),
        most[0],
        round(most[1]),
    )


class _ByRank:
    """How functions changed on single ranks, where all runs know these."""

    def __init__(self, runs: Sequence[Sequence[FunctionsOfRun]], keys: _Keys, chance: float) -> None:
        self._runs, self._keys = runs, keys
        self._ranks = sorted(_ranks_of_all(runs))
        self._chance = chance / max(len(self._ranks), 1)
        self._found: dict[Key, list[_Compared]] | None = None

    def most(self, one: _Compared) -> tuple[int, float]:
        """Return the rank on which a function surely changed, and clearly more than in the mean over ranks."""
        if one.rank != ALL_RANKS or one.where != IN_STEP:
            return -1, 0.0
        if self._found is None:
            self._found = {}
            for rank in self._ranks:
                for of_rank in _of_group(self._runs, (one.kind, IN_STEP, OWN_KINDS, rank), self._keys):
                    self._found.setdefault(of_rank.key, []).append(of_rank)
        sign = math.copysign(1.0, one.change_ns)
        most = max(self._found.get(one.key, ()), key=lambda of_rank: sign * of_rank.change_ns, default=None)
        least_ns = 0.0 if most is None else max(CLEARLY_MORE * abs(one.change_ns), most.half_ns(self._chance, 0.0))
        return (-1, 0.0) if most is None or sign * most.change_ns < least_ns else (most.rank, most.change_ns)


def _ranks_of_all(runs: Sequence[Sequence[FunctionsOfRun]]) -> frozenset[int]:
    """Return the ranks that each run knows by themselves."""
    return frozenset.intersection(*(one.ranks for side in runs for one in side))


def _newest(side: Sequence[FunctionsOfRun], which: tuple[str, str, int], key: Key, keys: _Keys) -> FunctionTime | None:
    """Return a function as the last run of a side has it; None if none has."""
    for run in reversed(side):
        for one in run.group(*which).functions:
            if keys.of(one.function, one.path) == key:
                return one
    return None


def _known_in(held: Sequence[set[Key] | None], key: Key) -> str:
    """Say on which side a function stood in a stack, be it as a caller."""
    if any(side is None for side in held):
        return "both"
    before, after = (key in (side or ()) for side in held)
    return "both" if before == after else "after" if after else "before"


def _errors(chance: float, degrees: float) -> float:
    return float(errors_at(chance, np.array([degrees]))[0])


def lines_of_diff(before: Side, after: Side, table: Table) -> Table | None:
    """Compare the functions of the kinds that ``diff`` calls slower or faster, ``table`` being its result.

    What other work on the machine can have added to a kind is in them, too. Returns None where a run has no
    functions.
    """
    changed = [row["kind"] for row in table.rows() if row["verdict"] != _NO_DIFFERENCE]
    # Unlike a kind, one of many functions is named only beyond what equal runs may differ by.
    return lines_between_runs(before, after, changed, allowance_ratio=RUN_TO_RUN_RATIO)


def lines_of_gate(gate: Gate) -> Table | None:
    """Compare the functions of the kinds whose change in ``check`` is beyond its bounds; else as for ``diff``.

    What other work on the machine can have added to a step does not count as a change of a kind.
    """
    before, after = gate.before, gate.after
    changed: list[str] = []
    if not gate.is_same and before.tells_spread and after.tells_spread:
        # In alternating runs, what slows the machine down slows both sides.
        by_turns = any(one.source == "rounds" for one in gate.changes)
        least, most = (0.0, 0.0) if by_turns else _added(other_work(before, after))
        changed = [one.kind for one in gate.changes if one.low_ns > most or one.high_ns < least]
    return lines_between_runs(before, after, changed, allowance_ratio=gate.allowance_ratio)


def _added(other: OtherWork) -> tuple[float, float]:
    """Return by how much other work can have changed a step: nothing where the use of the CPUs is not known."""
    added_ns = other.added_ns if other.is_known else 0.0
    return min(added_ns, 0.0), max(added_ns, 0.0)
