"""Which host is late again and again, and what it does longer: late_hosts.

In each run of several hosts, the host whose ranks made the others wait most is its late host, if that cost a step
enough to be worth a verdict. Somebody is last in any run, so a host is named only if it is the late one more often than
chance explains, in two ways. What chance is depends on the job: a rank that saves, logs or evaluates is late wherever
it runs. So the first way asks how often the ranks that a host held were late in runs of the job without the host; where
there are few of these, a late rank is expected, each as likely as any other. The second asks, of the runs in which
somebody was late, how often it would be this host: a bad week in which all hosts are late alternately blames none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.calibration.noise import times_or_more
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.table import Table

LATE_HOSTS = schema(
    "late_hosts",
    "Hosts that were the late one of a run, those that chance does not explain first",
    col.word("host", "its name"),
    col.number(
        "late_count",
        "runs in which its ranks made the others wait most, for 3 % of the step or more",
        title="late in runs",
    ),
    col.number("runs_count", "runs of several hosts that it took part in"),
    col.real("share_ratio", "the first by the second", title="part"),
    col.word(
        "cause", "kind of time that its late rank took longer than the others, in most of these runs", role="kind"
    ),
    col.number("cause_count", "in how many", title="in runs"),
    col.ns(
        "wait_ns",
        "what the mean other rank waited for it in a step, mean over the late runs",
        title="others wait a step",
    ),
    col.real("wait_ratio", "the same as a part of the step", title="part of the step"),
    Column(
        "lost_hours", "f8", "hours", "machine hours of the late runs that the waits took", title="machine hours lost"
    ),
    Column("cost", "f8", "", "price of these hours; -1 where none is known", missing=-1, role="cost"),
    col.real("expected_count", "late runs to expect of its ranks, by the runs of these jobs on other hosts", detail=2),
    col.real("chance_ratio", "probability of late_count or more by that, times the hosts that were examined", detail=2),
    col.real(
        "turn_ratio", "probability that it is the late host so often in the runs in which somebody was late", detail=2
    ),
    col.word(
        "verdict",
        "always: chance_ratio < 0.001, turn_ratio < 0.05, share_ratio > 0.5; often: the first two; rank: it always held"
        " the same rank of its jobs, which no other host held; few: too few runs to know; else chance",
    ),
)
#: Verdicts that name a host.
NAMED = ("always", "often")
#: As for ranks within a run: a finding is less likely by chance than the first; the last is a share of the runs.
_BY_CHANCE, _BY_TURNS, _MOST_RUNS = 0.001, 0.05, 0.5
#: Weight of equal chances against the runs that show how often a rank is late.
_EQUAL_WEIGHT = 1.0


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of several hosts."""

    number: int
    series: int
    #: Host -> its ranks, and what the mean other rank waited for them.
    ranks: dict[str, list[int]]
    waits_ns: dict[str, float]
    ranks_count: int
    #: The late host, its rank that was waited for longest, and that rank's work; empty if nobody was late.
    late: str = ""
    late_rank: int = -1
    cause: str = ""


def late_hosts(totals: RunTotals) -> Table:
    """Return the hosts that were late in a run, those that chance does not explain first."""
    return _late_hosts(_runs(totals), totals)


def slowed_by_host(totals: RunTotals) -> npt.NDArray[np.bool_]:
    """Return for each run whether its late host is one that is named: then the host is why its steps are long."""
    runs = _runs(totals)
    named = {row["host"] for row in _late_hosts(runs, totals).rows() if row["verdict"] in NAMED}
    out = np.zeros(len(totals.history), dtype=bool)
    out[[run.number for run in runs if run.late in named]] = True
    return out


def _late_hosts(runs: list[_Run], totals: RunTotals) -> Table:
    took_part: dict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        for host in run.ranks:
            took_part[host].append(run)
    lateness = _Lateness(runs)
    rows = [_row(host, of_host, lateness, totals, len(took_part)) for host, of_host in took_part.items()]
    found = [row for row in rows if row[1] > 0]
    order = {"always": 0, "often": 1, "rank": 2}
    found.sort(key=lambda row: (order.get(row[-1], 3), row[-3], -row[1], row[0]))
    return Table.from_rows(LATE_HOSTS, found)


def _runs(totals: RunTotals) -> list[_Run]:
    rows = totals.history.section("rank")
    bounds = np.searchsorted(rows["run"], np.arange(len(totals.history) + 1))
    rank, host, wait, cause = (rows[name] for name in ("rank", "host", "wait_ns", "longer_kind"))
    several = np.flatnonzero(totals.hosts_count > 1)
    found = []
    for number in several.tolist():
        part = slice(int(bounds[number]), int(bounds[number + 1]))
        if totals.step_ns[number] <= 0 or not wait[part].any():
            continue
        ranks: dict[str, list[int]] = defaultdict(list)
        waits: dict[str, float] = defaultdict(float)
        for one, name, ns in zip(rank[part].tolist(), host[part].tolist(), wait[part].tolist(), strict=True):
            ranks[name].append(one)
            waits[name] += ns
        worst = max(waits, key=lambda name: (waits[name], name))
        facts = number, int(totals.series[number]), dict(ranks), dict(waits), part.stop - part.start
        if waits[worst] < POLICY.worth_saying_ratio * totals.step_ns[number]:
            found.append(_Run(*facts))
            continue
        at = max(range(part.start, part.stop), key=lambda row: (host[row] == worst, wait[row]))
        found.append(_Run(*facts, worst, int(rank[at]), str(cause[at])))
    return found


class _Lateness:
    """How often each rank of each job was the late one, and on which host."""

    def __init__(self, runs: list[_Run]) -> None:
        #: (job, rank) -> runs in which it was late; (job, rank, host) -> the same where the host took part.
        self._late: Counter[tuple[int, int]] = Counter()
        self._late_next_to: Counter[tuple[int, int, str]] = Counter()
        #: job -> runs, and those in which somebody was late; (job, host) -> the same where the host took part.
        self._runs: Counter[int] = Counter()
        self._runs_of: Counter[tuple[int, str]] = Counter()
        self._late_runs: Counter[int] = Counter()
        self._late_runs_of: Counter[tuple[int, str]] = Counter()
        #: (job, rank) -> hosts that held it.
        self.held: dict[tuple[int, int], set[str]] = defaultdict(set)
        for run in runs:
            self._runs[run.series] += 1
            self._late_runs[run.series] += bool(run.late)
            self._late[run.series, run.late_rank] += bool(run.late)
            for host, ranks in run.ranks.items():
                self._runs_of[run.series, host] += 1
                self._late_runs_of[run.series, host] += bool(run.late)
                self._late_next_to[run.series, run.late_rank, host] += bool(run.late)
                for rank in ranks:
                    self.held[run.series, rank].add(host)

    def expected(self, run: _Run, host: str) -> float:
        """Return the chance that ranks which a host holds in a run are late there, by the job's runs without it."""
        return self._chance(run, host, self._runs[run.series] - self._runs_of[run.series, host])

    def turn(self, run: _Run, host: str) -> float:
        """Return the chance that it is this host if somebody is late, by the job's late runs without it."""
        return self._chance(run, host, self._late_runs[run.series] - self._late_runs_of[run.series, host])

    def _chance(self, run: _Run, host: str, trials: int) -> float:
        ranks = run.ranks[host]
        late = sum(self._late[run.series, rank] - self._late_next_to[run.series, rank, host] for rank in ranks)
        return (late + _EQUAL_WEIGHT * len(ranks) / run.ranks_count) / (trials + _EQUAL_WEIGHT)


def _row(host: str, runs: list[_Run], lateness: _Lateness, totals: RunTotals, hosts_count: int) -> tuple[Any, ...]:
    mattering = [run for run in runs if run.late]
    late = [run for run in runs if run.late == host]
    if not late:
        return host, 0
    chances = [lateness.expected(run, host) for run in runs]
    odds = min(1.0, hosts_count * times_or_more(len(late), chances))
    turns = [lateness.turn(run, host) for run in mattering]
    turn = times_or_more(len(late), turns)
    share = len(late) / len(runs)
    cause, count = Counter(run.cause for run in late).most_common(1)[0]
    waits = np.array([run.waits_ns[host] for run in late])
    numbers = [run.number for run in late]
    parts = waits / totals.step_ns[numbers]
    # Of the whole time of a run, waits can take the part that its counted steps are.
    inside = 1 - totals.shares[numbers, -1]
    hours = totals.hours[numbers] * parts * inside
    costs = hours * totals.price[numbers]
    cost = float(np.nansum(costs)) if np.isfinite(costs).any() else -1.0
    if odds < _BY_CHANCE and turn < _BY_TURNS:
        verdict = "rank" if _is_one_rank(host, late, lateness) else "always" if share > _MOST_RUNS else "often"
    else:
        least = min(1.0, hosts_count * times_or_more(len(runs), chances))
        too_few = least >= _BY_CHANCE or times_or_more(len(turns), turns) >= _BY_TURNS
        verdict = "few" if too_few else "chance"
    figures = float(waits.mean()), float(parts.mean()), float(hours.sum()), cost, float(sum(chances)), odds, turn
    return host, len(late), len(runs), share, cause, count, *figures, verdict


def _is_one_rank(host: str, late: list[_Run], lateness: _Lateness) -> bool:
    """Return whether the late rank was the same in all runs, and held by no other host: the job may be the reason."""
    ranks = {run.late_rank for run in late}
    return len(ranks) == 1 and all(lateness.held[run.series, run.late_rank] == {host} for run in late)
