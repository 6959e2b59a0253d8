"""A run that somebody watches: the states of all its hosts as the view that ``live`` shows.

A state says what its host knew when it was written; how old it is, and whether the job moves, follows from the time at
which it is read. The fields of these classes are those of the JSON: ``docs/reference/live.md`` describes them. A run
that nobody follows is followed in memory, as long as somebody watches.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.errors import FormatError
from stashtrace.live import times
from stashtrace.live.state import Event, LineNow, LiveState, read_states
from stashtrace.record.directory import read_run_file, scratch_of
from stashtrace.schema.stall_kinds import COLUMN_OF, COLUMNS

if TYPE_CHECKING:
    from stashtrace.live.view.unfollowed import FollowedHere

#: Format of the JSON; it grows where a field changes its meaning or goes.
FORMAT = 1
#: What ``condition`` may be.
CONDITIONS = {
    "begins": "the job runs, and no step has ended yet",
    "moves": "the job runs, and steps end",
    "quiet": "the job runs, and no step has ended for more than 10 s and 5 steps",
    "stuck": "the job is stuck: `stuck` says how",
    "unknown": "no host has written its state for three rounds, and no end of the job is recorded",
    "ended": "the job has ended",
}
#: What ``origin`` may be.
ORIGINS = {
    "follower": "the processes that `stashtrace run --live` started, one a host",
    "viewer": "this command, which has read what the ranks of this host have written",
    "recording": "the recording of a run that has ended, or that other hosts record and nobody follows",
}


@dataclass(frozen=True, slots=True)
class Spent:
    """Some steps of a rank: how long they took, and how much of that went where."""

    steps_count: int
    wall_ns: int
    #: Kind of time -> its part of ``wall_ns``.
    stall_ns: dict[str, int]
    #: Column of the budget -> its share of ``wall_ns``; they add up to 1.
    share_ratio: dict[str, float]


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank."""

    rank: int
    host: str
    steps_count: int
    #: Number of the last step that has ended, and when that was; 0 if unknown.
    last_step: int
    last_end_realtime_ns: int
    newest: Spent
    whole: Spent
    #: Steps before the newest ones with which these are compared, and their length together.
    earlier_count: int
    earlier_ns: int
    #: Waits of other ranks of which this one was the longest cause, since the begin.
    caused_wait_ns: int


@dataclass(frozen=True, slots=True)
class HostView:
    """One host."""

    host: str
    ranks: list[int]
    updated_realtime_ns: int
    age_s: float
    interval_s: float
    rounds_count: int
    is_old: bool
    #: Whether its follower is there; None where that cannot be seen.
    follower_lives: bool | None
    ended: bool
    #: CPU time of all rounds, and its share of one core since the begin of the run; -1 if unknown.
    own_cpu_ns: int
    own_cpu_ratio: float
    lost_records_count: int
    #: Sentences about the newest steps of its ranks, worst first.
    verdicts: list[str]
    #: The user's lines that cost most in these steps; none where no stacks are recorded.
    lines: list[LineNow]
    #: What this host cannot know, and why rows are missing.
    notes: list[str]


@dataclass(frozen=True, slots=True)
class LiveView:
    """All hosts."""

    path: str
    run_id: str
    command: list[str]
    origin: str
    condition: str
    now_realtime_ns: int
    begin_realtime_ns: int
    #: When the job ended, and its exit code; 0 and -1 while it runs, and where that was not recorded.
    end_realtime_ns: int
    exit_code: int
    #: Of the ranks: the fewest and the most steps that have ended.
    least_steps_count: int
    steps_count: int
    #: Median of the ranks over their newest steps, and over those before them; 0 before the first.
    step_ns: float
    steps_per_s: float
    earlier_steps_per_s: float
    #: How long no step of any rank has ended, at the time of the newest state; -1 before the first.
    quiet_ns: int
    stuck: str
    stuck_ranks: list[int]
    lost_records_count: int
    hosts: list[HostView]
    ranks: list[RankView]
    events: list[Event]

    def document(self) -> dict[str, Any]:
        """Return the content of the JSON."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def merge_states(
    states: Sequence[LiveState], facts: Mapping[str, Any], *, path: str, origin: str, now_realtime_ns: int
) -> LiveView:
    """Return the states of all hosts as one view.

    ``states``: at least one. ``facts``: of ``run.json``. ``path``: of the run as it was typed. Raises FormatError if a
    state holds something else than it should.
    """
    hosts, ranks = [], list[RankView]()
    for state in states:
        try:
            hosts.append(_host(state, now_realtime_ns))
            ranks += [_rank(int(rank), state.host, figures) for rank, figures in state.ranks.items()]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"the live state of host {state.host} is damaged: {error!r}") from error
    ranks = _one_of_each(ranks)
    updated = max(state.updated_realtime_ns for state in states)
    last_end = max((rank.last_end_realtime_ns for rank in ranks), default=0)
    rates = [_rate(rank.newest.steps_count, rank.newest.wall_ns) for rank in ranks]
    earlier = [_rate(rank.earlier_count, rank.earlier_ns) for rank in ranks if rank.earlier_count]
    lengths = [rank.newest.wall_ns / rank.newest.steps_count for rank in ranks if rank.newest.steps_count]
    stuck = [state for state in states if state.stuck]
    view = LiveView(
        path=path,
        run_id=states[0].run_id,
        command=list(facts.get("command") or states[0].command),
        origin=origin,
        condition="",
        now_realtime_ns=now_realtime_ns,
        begin_realtime_ns=min(state.begin_realtime_ns for state in states),
        end_realtime_ns=0,
        exit_code=-1,
        least_steps_count=min((rank.steps_count for rank in ranks), default=0),
        steps_count=max((rank.steps_count for rank in ranks), default=0),
        step_ns=statistics.median(lengths) if lengths else 0.0,
        steps_per_s=statistics.median(rates) if rates else 0.0,
        earlier_steps_per_s=statistics.median(earlier) if earlier else 0.0,
        quiet_ns=max(updated - last_end, 0) if last_end else -1,
        stuck=" ".join(dict.fromkeys(state.stuck for state in stuck)),
        stuck_ranks=sorted({rank for state in stuck for rank in state.stuck_ranks}),
        lost_records_count=sum(state.lost_records_count for state in states),
        hosts=hosts,
        ranks=ranks,
        events=sorted((event for state in states for event in state.events), key=lambda event: event.realtime_ns),
    )
    condition = _condition(view, facts)
    if condition != "ended":
        return dataclasses.replace(view, condition=condition)
    return dataclasses.replace(
        view,
        condition=condition,
        end_realtime_ns=int(facts.get("end_realtime_ns", 0)),
        exit_code=int(facts.get("exit_code", -1)),
    )


def _host(state: LiveState, now_realtime_ns: int) -> HostView:
    age_s = max(now_realtime_ns - state.updated_realtime_ns, 0) / 1e9
    followed_ns = state.updated_realtime_ns - state.begin_realtime_ns
    known = state.own_cpu_ns > 0 and state.begin_realtime_ns > 0 and followed_ns > 0
    return HostView(
        host=state.host,
        ranks=sorted(int(rank) for rank, figures in state.ranks.items() if figures["steps_count"]),
        updated_realtime_ns=state.updated_realtime_ns,
        age_s=age_s,
        interval_s=state.interval_s,
        rounds_count=state.rounds_count,
        is_old=not state.ended and age_s > times.SILENT_ROUNDS * max(state.interval_s, 1.0),
        follower_lives=state.follower_lives(),
        ended=bool(state.ended),
        own_cpu_ns=state.own_cpu_ns,
        own_cpu_ratio=state.own_cpu_ns / followed_ns if known else -1.0,
        lost_records_count=state.lost_records_count,
        verdicts=[str(text) for text in state.verdicts],
        lines=list(state.lines),
        notes=[str(text) for text in state.notes],
    )


def _rank(rank: int, host: str, figures: Mapping[str, Any]) -> RankView:
    return RankView(
        rank=rank,
        host=host,
        steps_count=int(figures["steps_count"]),
        last_step=int(figures["last_step"]),
        last_end_realtime_ns=int(figures["last_end_realtime_ns"]),
        newest=_spent(figures["newest_count"], figures["newest_ns"], figures["newest_stall_ns"]),
        whole=_spent(figures["steps_count"], figures["wall_ns"], figures["stall_ns"]),
        earlier_count=int(figures.get("earlier_count", 0)),
        earlier_ns=int(figures.get("earlier_ns", 0)),
        caused_wait_ns=int(figures["caused_wait_ns"]),
    )


def _spent(steps_count: int, wall_ns: int, stall_ns: Mapping[str, Any]) -> Spent:
    times = {kind: int(stall_ns.get(kind, 0)) for kind in COLUMN_OF}
    shares = {column: sum(times[kind] for kind in kinds) / max(wall_ns, 1) for column, kinds in COLUMNS.items()}
    return Spent(int(steps_count), int(wall_ns), times, shares)


def _one_of_each(ranks: Sequence[RankView]) -> list[RankView]:
    """Return one row a rank, by rank: of several hosts the one on which it made its last step.

    A host also counts how long its ranks waited for one that it does not see.
    """
    found: dict[int, RankView] = {}
    for one in ranks:
        other = found.get(one.rank, one)
        newer = one if one.last_end_realtime_ns >= other.last_end_realtime_ns else other
        caused = one.caused_wait_ns + (other.caused_wait_ns if other is not one else 0)
        found[one.rank] = dataclasses.replace(newer, caused_wait_ns=caused)
    return [one for _, one in sorted(found.items()) if one.steps_count]


def _rate(count: int, ns: int) -> float:
    return count * 1e9 / ns if ns > 0 else 0.0


def _condition(view: LiveView, facts: Mapping[str, Any]) -> str:
    if all(host.ended or (host.is_old and "end_realtime_ns" in facts) for host in view.hosts):
        return "ended"
    if all(host.ended or host.is_old for host in view.hosts):
        return "unknown"
    if view.stuck:
        return "stuck"
    if not view.ranks:
        return "begins"
    return "quiet" if view.quiet_ns > max(times.VIEW_QUIET_NS, times.VIEW_QUIET_STEPS * view.step_ns) else "moves"


# Where states come from ------------------------------------------------------------------------------------------


def _states(path: Path, run_id: str) -> list[LiveState]:
    """Return the states of the wanted run, one a host."""
    try:
        states = read_states(path)
    except FormatError:
        if path.exists():
            raise
        states = []
    if not path.exists():
        raise FormatError(f"{path} is gone: it was renamed or removed")
    found = [state for state in states if state.run_id.startswith(run_id.partition(".")[0])]
    if len({state.run_id for state in found}) > 1:
        listed = ", ".join(sorted({state.run_id for state in found}))
        raise FormatError(f"{path} holds several runs: {listed}", hint="choose one with `--run ID`")
    return found


class Watched:
    """A run that somebody watches.

    ``path``: run directory, or a file of it. ``run_id``: begin of the id of the run, where a directory holds several.
    """

    def __init__(self, path: Path, run_id: str | None = None) -> None:
        self._path, self._run_id = path, run_id or ""
        self._here: FollowedHere | None = None
        self._recorded: list[LiveState] = []
        self._again_s = 0.0

    def peek(self) -> LiveView:
        """Return what is known of the run now.

        Raises FormatError if the directory is gone, or holds something damaged or from a newer stashtrace. Raises
        MissingDataError if it is no run.
        """
        facts, states = read_run_file(self._path), _states(self._path, self._run_id)
        if states:
            self._here = None
            return self._view(states, facts, "follower")
        if self._here is not None and self._here.has_ended(facts):
            self._here = None  # a merge rewrites the files: they are read again
        ended = bool(self._recorded) and self._recorded[0].ended
        is_due = not self._recorded or (not ended and time.monotonic() >= self._again_s)
        if self._here is None and is_due:
            # What this loads is not needed for states.
            from stashtrace.live.view.unfollowed import find_unfollowed

            self._again_s = time.monotonic() + times.AGAIN_S
            self._here, self._recorded = find_unfollowed(scratch_of(self._path) or self._path, self._run_id, facts)
        if self._here is not None:
            return self._view([self._here.state()], facts, "viewer")
        return self._view(self._recorded, facts, "recording")

    def _view(self, states: Sequence[LiveState], facts: Mapping[str, Any], origin: str) -> LiveView:
        return merge_states(states, facts, path=str(self._path), origin=origin, now_realtime_ns=time.time_ns())
