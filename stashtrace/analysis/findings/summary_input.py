"""The numbers behind the claims of a summary, taken once from a trace and its analyses.

Shares are sums over the counted steps, without warm-up and time outside of steps, so the kinds of a rank add up to its
step time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.findings.blocked_calls import blocked_calls
from stashtrace.analysis.findings.claim_rows import BUDGETS
from stashtrace.analysis.findings.over_time.step_changes import OVER_TIME, changes_of
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.trust import Trust, trust
from stashtrace.analysis.findings.spikes.spikes import SPIKES, spikes_of
from stashtrace.analysis.intervals import Bools, TimeSet
from stashtrace.analysis.stalls.budget import bounds_of_groups
from stashtrace.analysis.stalls.budget import stalls as find_stalls
from stashtrace.analysis.stalls.hidden import AGREEMENT, HIDDEN, agreement, hidden
from stashtrace.analysis.steps.step_time import counted_of_kinds, kinds_that_count, step_kinds, step_time_steps
from stashtrace.analysis.steps.steps import counted_steps, in_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.errors import MissingDataError, guarded
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import Awaited, Bracket, ProcessRole, StreamFlag
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's counted steps."""

    rank: int
    host: str
    steps_count: int
    #: Mean wall time of a step, so that the means of its kinds add up to it.
    step_ns: int
    #: Median wall time of a step.
    middle_step_ns: int
    #: All counted steps together.
    wall_ns: int
    #: Nanoseconds per kind over the counted steps, and the bounds.
    kinds: dict[str, int]
    low: dict[str, int]
    high: dict[str, int]
    #: Share of the steps that the step thread was runnable and not running.
    contention_ratio: float = 0.0
    #: Time for which compute streams waited while the host ran functions of the job.
    held_ns: int = 0
    #: Time inside graph launches of which nothing is known.
    opaque_ns: int = 0
    #: Estimated time of collectives without device times.
    untimed_ns: int = 0
    #: The rank has a device, but its steps are timed by the host.
    host_timed: bool = False
    #: Source of the stalls: kernels, brackets or host; mixed if several.
    method: str = ""
    #: Known bounds of the sum of the kinds of a summary column.
    exact: dict[frozenset[str], tuple[int, int]] = field(default_factory=dict)
    #: Time of ``other`` by the call that blocked the step thread (``blocking.blocked_calls``).
    blocked_ns: dict[str, int] = field(default_factory=dict)

    @property
    def unexplained_ns(self) -> int:
        """Part of ``other`` in which no recorded call, and no function on the device's streams, shows what blocked."""
        known = self.held_ns + sum(self.blocked_ns.values())
        return max(self.kinds.get("other", 0) - known, 0)

    def share(self, group: str) -> float:
        """Return a column's share of the step time."""
        return sum(self.kinds.get(k, 0) for k in COLUMNS[group]) / max(self.wall_ns, 1)

    def per_step_ns(self, *kinds: str) -> float:
        """Return the mean nanoseconds per step of some kinds."""
        return sum(self.kinds.get(k, 0) for k in kinds) / max(self.steps_count, 1)

    def bounds_ns(self, *kinds: str) -> tuple[float, float]:
        """Return the bounds of :meth:`per_step_ns`: those of the kinds, and those that the other kinds leave.

        The latter matter for several kinds: a doubt whether a wait was fetch or prep is no doubt about their sum.
        """
        count, others = max(self.steps_count, 1), [k for k in self.high if k not in kinds]
        known = self.exact.get(frozenset(kinds))
        if known is not None:
            return known[0] / count, known[1] / count
        low = max(sum(self.low.get(k, 0) for k in kinds), self.wall_ns - sum(self.high[k] for k in others))
        high = min(sum(self.high.get(k, 0) for k in kinds), self.wall_ns - sum(self.low[k] for k in others))
        return low / count, high / count


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a run for a summary."""

    trace: Trace
    ranks: tuple[RankFacts, ...]
    ranks_count: int
    hosts_count: int
    steps_count: int
    warmup_count: int
    #: Steps that the event budget left without timing events; they are not counted.
    thinned_count: int
    missing_ranks: tuple[int, ...]
    trust: Trust
    #: ``steps`` (the counted ones), ``stalls``, ``hidden``, ``step_kinds``, ``over_time``, ``spikes``, after deep mode
    #: ``agreement``; empty without steps.
    tables: dict[str, Table] = field(default_factory=dict)
    #: Of ``warmup_count``, steps at the end that the recording cut.
    cut_count: int = 0
    #: Kind of the steps that are counted; empty for those that train, or the only ones.
    step_kind: str = ""
    #: The same of validation and inference steps.
    others: tuple[RunFacts, ...] = ()
    #: Lines that say what could not be made, by a fault of ours.
    not_said: tuple[str, ...] = ()

    @property
    def doubts(self) -> dict[str, float]:
        """Shares of all counted step time that nothing explains, by their kind, largest first."""
        wall = max(sum(r.wall_ns for r in self.ranks), 1)
        shares = {
            "unexplained": sum(r.unexplained_ns for r in self.ranks) / wall,
            "inside CUDA graphs": sum(r.opaque_ns for r in self.ranks) / wall,
            "in untimed collectives": sum(r.untimed_ns for r in self.ranks) / wall,
        }
        return dict(sorted(((k, v) for k, v in shares.items() if v > 0), key=lambda item: -item[1]))

    @property
    def unexplained_ratio(self) -> float:
        """Sum of :attr:`doubts`."""
        return sum(self.doubts.values())

    @property
    def hosts(self) -> dict[str, list[int]]:
        """Hosts in the order of their first rank, and the ranks that ran on each."""
        return ranks_of_hosts(self.trace)

    @property
    def imported(self) -> bool:
        """Whether another tool recorded the run."""
        return is_imported(self.trace)


def ranks_of_hosts(trace: Trace) -> dict[str, list[int]]:
    """Return the ranks of each host; hosts are in the order of their first rank."""
    processes = trace.processes
    rows = processes.take(processes["role_code"] == ProcessRole.RANK).sort_by("rank")
    ranks: dict[str, list[int]] = {}
    for rank, host in zip(rows["rank"].tolist(), rows["host_code"].tolist(), strict=True):
        ranks.setdefault(trace.text(host), []).append(rank)
    return ranks


def gather(trace: Trace) -> RunFacts:
    """Gather the facts of a run; those of a run without steps have no ranks.

    Steps of validation and inference have separate facts.
    """
    world = int(trace.processes["world_size"].max(initial=-1))
    present = [int(r) for r in trace.ranks]
    missing = tuple(r for r in range(world) if r not in present) if present else ()
    hosts = sum(bool(trace.text(code)) for code in np.unique(trace.processes["host_code"]).tolist())
    unsaid = _Unsaid()
    found = guarded("where the time of the steps went", partial(_steps_and_stalls, trace), unsaid.append)
    if found is None:
        known = unsaid.made("how far to trust it", lambda: trust(trace, {}, missing=bool(missing)), Trust())
        return RunFacts(trace, (), len(present), hosts, 0, 0, 0, missing, known, not_said=tuple(unsaid))
    steps, stalls = found
    tables = _tables(trace, steps, stalls, unsaid)
    counted, kinds = tables["steps"], kinds_that_count(steps)
    quiet = [kind for kind in QUIET_KINDS if (steps["kind"] == kind).any() and kind not in kinds]
    first = steps.take(np.isin(steps["kind"], kinds) & (steps["rank"] == counted["rank"][0]))
    counted_count = np.count_nonzero(counted["rank"] == first["rank"][0])
    left_out = first["warmup"] if counted_count < len(first) else np.zeros(len(first), dtype=np.int64)
    # The last step of a recording may be cut, and is left out then as well.
    is_cut = int(len(first) > 1 and left_out[first["step"].argmax()] == 1)
    warm = int(np.count_nonzero(left_out))
    known = unsaid.made("how far to trust it", lambda: trust(trace, tables, missing=bool(missing)), Trust())
    facts = RunFacts(
        trace,
        _ranks(trace, tables, unsaid),
        len(present),
        hosts,
        int(counted_count),
        warm,
        len(first) - warm - int(counted_count),
        missing,
        known,
        tables,
        cut_count=is_cut,
    )
    others = []
    for kind in quiet:
        of_kind = {**tables, "steps": counted_of_kinds(steps, [kind])}
        of_kind.pop("agreement", None)
        count = int(np.count_nonzero(of_kind["steps"]["rank"] == of_kind["steps"]["rank"][0]))
        others.append(
            replace(facts, ranks=_ranks(trace, of_kind, unsaid), steps_count=count, tables=of_kind, step_kind=kind)
        )
    return replace(facts, others=tuple(others), not_said=tuple(dict.fromkeys(unsaid)))


class _Unsaid(list[str]):
    """Lines that say what could not be made of a run."""

    def made(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        """Return what a function makes, or something else and a line where it fails."""

        def instead(line: str) -> T:
            self.append(line)
            return otherwise

        return guarded(what, make, instead)


def _steps_and_stalls(trace: Trace) -> tuple[Table, Table] | None:
    """Return the steps of a run and where their time went; None if it has none."""
    try:
        steps = find_steps(trace)
        return (steps, find_stalls(trace, warmup=True)) if len(steps) else None
    except MissingDataError:
        return None


def _tables(trace: Trace, steps: Table, stalls: Table, unsaid: _Unsaid) -> dict[str, Table]:
    """Return the tables of a run with steps, those that cannot be made without rows."""
    tables = {
        "stalls": stalls,
        "hidden": unsaid.made("what the steps hide", partial(hidden, trace), Table.empty(HIDDEN)),
        "step_kinds": step_kinds(trace),
    }
    if len(trace.kernels):
        agree = partial(agreement, trace)
        tables["agreement"] = unsaid.made("how brackets and kernels agree", agree, Table.empty(AGREEMENT))
    counted = tables["steps"] = step_time_steps(steps)
    changes = partial(changes_of, counted)
    slow = partial(spikes_of, trace, counted_steps(steps), stalls, tables["hidden"])
    tables["over_time"] = unsaid.made("how the steps change", changes, Table.empty(OVER_TIME))
    tables["spikes"] = unsaid.made("slow steps", slow, Table.empty(SPIKES))
    return tables


def _ranks(trace: Trace, tables: dict[str, Table], unsaid: _Unsaid) -> tuple[RankFacts, ...]:
    counted = tables["steps"]
    bounds: dict[int, dict[str, tuple[int, int]]] = unsaid.made(
        "bounds of times", partial(bounds_of_groups, trace, counted, COLUMNS), {}
    )
    calls = partial(blocked_calls, trace, tables["stalls"], counted, least_ratio=POLICY.blocked_examined_ratio)
    blocked: dict[int, dict[str, int]] = unsaid.made("calls that block", calls, {})
    known = _Known(trace, tables)
    ranks = [_rank_facts(known, rank, bounds.get(rank, {})) for rank in np.unique(counted["rank"]).tolist()]
    return tuple(replace(rank, blocked_ns=blocked.get(rank.rank, {})) for rank in ranks)


class _Known:
    """Rows of the counted steps of all ranks, chosen and grouped once."""

    def __init__(self, trace: Trace, tables: dict[str, Table]) -> None:
        steps, stalls, hidden_work = tables["steps"], tables["stalls"], tables["hidden"]
        self.stalls, counted = stalls, in_steps(stalls, steps)
        self.steps, self.stall_rows = _by_rank(steps), RowsBy(np.where(counted, stalls["rank"], _NOBODY))
        rows, kinds = np.flatnonzero(counted), GroupBy(stalls["kind"])
        of_ranks = GroupBy(stalls["rank"][rows], kinds.number[rows])
        self._kinds, self._kinds_by_rank = kinds.values[of_ranks.keys[1]], RowsBy(of_ranks.keys[0])
        self._sums = [of_ranks.sum(stalls[name][rows]) for name in ("stall_ns", "low_ns", "high_ns")]
        self.hidden = _by_rank(hidden_work, in_steps(hidden_work, steps))
        self.held = _by_rank(trace.device_brackets, _waits_for_host_functions(trace))
        self.timed = _by_rank(trace.collectives, trace.collectives["device_begin_ns"] >= 0)
        self.on_device = frozenset(np.unique(trace.device_brackets["rank"]).tolist())
        ranks = trace.processes.take(trace.processes["role_code"] == ProcessRole.RANK)
        first = zip(ranks["rank"][::-1].tolist(), ranks["host_code"][::-1].tolist(), strict=True)
        self.hosts = {rank: trace.text(host) for rank, host in first}

    def sums(self, rank: int) -> tuple[dict[str, int], ...]:
        """Return the time of each kind in the steps of a rank, and its bounds."""
        rows = self._kinds_by_rank.rows(rank)
        names = self._kinds[rows].tolist()
        return tuple(dict(zip(names, sums[rows].tolist(), strict=True)) for sums in self._sums)

    def method(self, rank: int) -> str:
        """Return the method of the stalls of a rank; ``mixed`` if there are several, or none."""
        methods = self.stalls["method"][self.stall_rows.rows(rank)]
        return str(methods[0]) if len(methods) and (methods == methods[0]).all() else "mixed"


#: The rank of rows that are not chosen.
_NOBODY = -2


def _by_rank(table: Table, chosen: Bools | None = None) -> Callable[[int], Table]:
    """Return what gives the rows, or the chosen ones, of a rank in order."""
    rows = RowsBy(table["rank"] if chosen is None else np.where(chosen, table["rank"], _NOBODY))
    return lambda rank: table.take(rows.rows(rank))


def _rank_facts(known: _Known, rank: int, bounds: dict[str, tuple[int, int]]) -> RankFacts:
    steps, hidden_rows, held = known.steps(rank), known.hidden(rank), known.held(rank)
    kinds, low, high = known.sums(rank)
    wall = steps["end_ns"] - steps["begin_ns"]
    sampled = hidden_rows.take(hidden_rows["cpu_contention_ns"] >= 0)
    return RankFacts(
        rank,
        known.hosts.get(rank, ""),
        len(steps),
        round(wall.mean()),
        int(np.median(wall)),
        int(wall.sum()),
        kinds,
        low,
        high,
        float(sampled["cpu_contention_ns"].sum()) / max(int(sampled["wall_ns"].sum()), 1),
        int(TimeSet.of_rows(held).within(steps["begin_ns"], steps["end_ns"]).sum()),
        *_unseen(known.timed(rank), hidden_rows),
        host_timed=rank in known.on_device and bool((steps["clock_code"] == 0).all()),
        exact={frozenset(COLUMNS[name]): of_name for name, of_name in bounds.items()},
        method=known.method(rank),
    )


def _unseen(timed: Table, hidden: Table) -> tuple[int, int]:
    """Return the time of the counted steps inside opaque graphs, and an estimate of that of untimed collectives."""
    opaque, untimed = int(hidden["graph_opaque_ns"].sum()), int(hidden["untimed_count"].sum())
    if not untimed:
        return opaque, 0
    if len(timed):
        return opaque, untimed * int(np.median(timed["device_end_ns"] - timed["device_begin_ns"]))
    return opaque, int(hidden["wall_ns"][hidden["untimed_count"] > 0].sum())  # nothing is known of those steps


def _waits_for_host_functions(trace: Trace) -> Bools:
    """Return the mask of brackets in which a compute stream waited for a function on the host."""
    brackets, streams = trace.device_brackets, trace.streams
    compute = streams["track_id"][(streams["stream_flags"] & StreamFlag.CARRIES_COMPUTE) != 0]
    function = brackets["bracket_code"] == Bracket.HOST_FUNCTION
    function |= (brackets["bracket_code"] == Bracket.STREAM_WAIT) & (brackets["awaited_code"] == Awaited.HOST_FUNCTION)
    held = function & np.isin(brackets["track_id"], compute) & (brackets["begin_ns"] >= 0)
    return np.asarray(held, dtype=np.bool_)


def budgets(facts: RunFacts) -> Table:
    """Make the table ``budgets``: the time of each rank by column."""
    rows = []
    for part in (facts, *facts.others):
        for rank in part.ranks:
            head = (rank.rank, rank.host, part.step_kind, rank.steps_count, rank.step_ns, rank.middle_step_ns)
            for column, kinds in COLUMNS.items():
                low, high = (round(bound * rank.steps_count) for bound in rank.bounds_ns(*kinds))
                spent = sum(rank.kinds.get(kind, 0) for kind in kinds)
                rows.append((*head, column, spent, low, high, rank.share(column)))
    return Table.from_rows(BUDGETS, rows)
