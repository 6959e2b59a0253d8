"""Figures of the runs of a characterization: step time, attribution, and stalls as differences between runs.

    t1 --(all devices)--> t2 --(real data, cached)--> t4 --(nothing cached)--> t3
                           t2 --(over a network)----> t5

``t`` is the time of a training step: the mean, not the median, as with four workers three of four steps do not wait for
data, and their median would deny a stall that is there. Steps in which an epoch begins are left out, for a short run
has more of them than the job. Each stall exists in a clean form, a share of the slower of the two steps, and as Stash's
code computes it, so that published numbers can be compared. Formulas: Sharma et al., Stash, ICDCS 2023, and its code;
``docs/concepts/differential.md`` lists where the two forms part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse, cpu_use
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.steps.steps import step_at
from stashtrace.analysis.steps.training_loop import UPDATE_KINDS
from stashtrace.calibration.noise import NORMAL, Floats, student
from stashtrace.errors import MissingDataError
from stashtrace.lab.number_intervals import Estimate
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, ProcessRole, Severity
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_with_key
from stashtrace.text.units import ranks_text

#: Fewer steps than this say nothing of a mean.
LEAST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Means per step and rank."""

    step_ns: float
    #: Steps of each rank that were counted.
    steps_count: int
    #: Steps left out because an epoch begins in them.
    epochs_count: int
    #: Workers: of the loaders of one rank.
    ranks_count: int
    hosts_count: int
    workers_count: int
    #: Kind -> time per step, and its bounds.
    stalls_ns: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    #: Collectives.
    messages_count: float = 0.0
    message_bytes: float = 0.0
    #: Whether ranks used a GPU.
    on_device: bool = False
    #: Who used the CPUs meanwhile (``compare.cpu_use``); None where the machine was not sampled.
    cpus: CpuUse | None = None


def step_figures(trace: Trace, warmup: int, iterations: int) -> Figures:
    """Figures of the training steps ``warmup`` to ``warmup + iterations - 1``; validation has numbers too, and no part.

    Raises MissingDataError if the run did not get that far; the message says how far it got.
    """
    steps = analyze(trace, "steps")
    train = np.isin(steps["kind"], UPDATE_KINDS)
    numbers = np.unique(steps["step"][train])[warmup : warmup + iterations]
    wanted = train & np.isin(steps["step"], numbers)
    ranks = np.unique(steps["rank"][train])
    seen, per_step = np.unique(steps["step"][wanted], return_counts=True)
    seen = seen[per_step == len(ranks)]
    if len(seen) < min(iterations, LEAST_STEPS):
        count = len(np.unique(steps["step"][train]))
        least = min(iterations, LEAST_STEPS)
        raise MissingDataError(
            f"only {count} training steps were seen: with {warmup} of warm-up it takes {warmup + least}",
            hint="give the job more to do" + (", or less warm-up with --warmup" if warmup else ""),
        )
    counted = np.setdiff1d(seen, _epoch_begins(trace, steps))
    if len(counted) < LEAST_STEPS:
        counted = seen
    rows = np.flatnonzero(wanted & np.isin(steps["step"], counted))
    total = float((steps["end_ns"][rows] - steps["begin_ns"][rows]).sum())
    messages, payload = _messages(trace, steps.take(rows))
    processes = trace.processes
    of_rank = processes["role_code"] == ProcessRole.RANK
    return Figures(
        step_ns=total / len(rows),
        steps_count=len(counted),
        epochs_count=len(seen) - len(counted),
        ranks_count=len(ranks),
        hosts_count=len(np.unique(processes["host_code"][of_rank])),
        workers_count=_workers(trace),
        stalls_ns=_stalls(trace, counted, len(rows)),
        messages_count=messages / len(rows),
        message_bytes=payload / len(rows),
        on_device=bool(len(trace.devices)) and bool((steps["clock_code"] > 0).any()),
        cpus=cpu_use(trace, steps.take(rows)),
    )


def _workers(trace: Trace) -> int:
    """Workers that made batches of one rank, those of each epoch counted once."""
    made = trace.batches.take(trace.batches["worker_id"] >= 0)
    ranks, _ = GroupBy(made["rank"], made["worker_id"]).keys
    return int(GroupBy(ranks).sizes.max(initial=0))


def _epoch_begins(trace: Trace, steps: Table) -> np.ndarray:
    """Steps in which a loader is started on some rank."""
    batches = trace.batches
    first = np.flatnonzero((batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] <= 0))
    numbers = []
    for rank in np.unique(batches["rank"][first]).tolist():
        of_rank = np.flatnonzero(steps["rank"] == rank)
        if not len(of_rank):
            continue
        of_rank = of_rank[np.argsort(steps["begin_ns"][of_rank])]
        # Where a wait ends its batch is used: the step before may have asked for it.
        for moment in ("begin_ns", "end_ns"):
            at = np.searchsorted(steps["begin_ns"][of_rank], batches[moment][first][batches["rank"][first] == rank]) - 1
            numbers.append(steps["step"][of_rank[np.clip(at, 0, len(of_rank) - 1)]])
    return np.unique(np.concatenate(numbers)) if numbers else np.empty(0, dtype=np.int64)


def _stalls(trace: Trace, counted: np.ndarray, rows_count: int) -> dict[str, tuple[float, float, float]]:
    """Kind -> mean time in the counted steps, and its bounds."""
    table = analyze(trace, "stalls", warmup=True)
    table = table.take(np.isin(table["step"], counted))
    by_kind = GroupBy(table["kind"])
    means = (by_kind.sum(table[name]) / rows_count for name in ("stall_ns", "low_ns", "high_ns"))
    rows = zip(*(column.tolist() for column in means), strict=True)
    return dict(zip(by_kind.values.tolist(), rows, strict=True))


def _messages(trace: Trace, steps: Table) -> tuple[int, int]:
    """Collectives that were called in these steps, and their bytes."""
    called = trace.collectives
    inside = step_at(steps, called["rank"], called["call_ns"]) >= 0
    return int(inside.sum()), int(called["message_bytes"][inside].sum())


# Whether a run was on synthetic data: what its processes say of the batches that they replayed. The guest's half is
# ``probes/torch_replay``. A run on synthetic data counts only if every rank replayed.

#: Metadata row of a process that has replayed a batch; the same in ``probes/torch_replay``.
FACT = ("synthetic_data", "batches replayed")
#: Names of the loss rows of the replay.
_NAMES = (
    "batches_replayed",
    "batches_not_replayed",
    "replayed_batches_differ",
    "replayed_batches_copied_again",
    "replayed_batches_restored",
    "replayed_epoch_does_not_end",
)


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """Ranks of a run that replayed batches."""

    #: Ranks that replayed batches.
    ranks: tuple[int, ...]
    #: Ranks that did not.
    missing: tuple[int, ...]
    #: What makes the steps longer than those of synthetic data: batches of other loaders, copies to the device.
    doubts: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every rank replayed batches."""
        return bool(self.ranks) and not self.missing

    @property
    def sentence(self) -> str:
        """The same as a sentence."""
        if self.complete:
            said = "synthetic data: batches replayed"
        elif self.ranks:
            said = f"no synthetic data on ranks {ranks_text(list(self.missing))}: they replayed no batch"
        else:
            said = "no synthetic data: no DataLoader of torch returned more batches than were to be kept"
        return "; ".join([said, *self.doubts])


def synthetic_data(trace: Trace) -> SyntheticData:
    """Find which ranks of a run replayed batches."""
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    key, value = FACT
    replayed = {
        rank_of.get(row["process_id"], -1)
        for row in facts_with_key(trace, key.__eq__).rows()
        if trace.text(row["value_code"]) == value
    }
    ranks = {rank for rank in rank_of.values() if rank >= 0}
    doubts = dict.fromkeys(  # in order, each once
        trace.text(row["advice_code"])
        for row in trace.losses.rows()
        if trace.text(row["name_code"]) in _NAMES and row["severity_code"] != Severity.INFO
    )
    return SyntheticData(tuple(sorted(replayed & ranks)), tuple(sorted(ranks - replayed)), tuple(doubts))


#: The five configurations: 1 one device, synthetic batches; 2 all devices of a host, synthetic; 3 as 2 with the real
#: data, its files not in the page cache; 4 as 3, its files in the page cache; 5 as 2, but over a network. JSON keys,
#: run names and the option ``--steps`` call them steps, as Stash does.
CONFIGURATIONS = (1, 2, 3, 4, 5)
#: Stall -> the configurations that it is the difference of: the faster and the slower one, as they are meant to be.
SIDES: Mapping[str, tuple[int, int]] = {"interconnect": (1, 2), "network": (2, 5), "prep": (2, 4), "fetch": (4, 3)}
STALLS = tuple(SIDES)
#: As published, the fetch stall is taken from the cold step after the prep stall, and so needs configuration 2 as well.
_PUBLISHED_NEEDS: Mapping[str, tuple[int, ...]] = {**SIDES, "fetch": (2, 3, 4)}

_RESAMPLES = 4000
_SEED = 20230718
#: A deviation this small compared with the other one is rounding.
_NOTHING = 1e-6


@dataclass(frozen=True, slots=True)
class Stall:
    """One stall in both forms."""

    #: Shares: 0.25 is a quarter of the step. The published network stall has no upper bound.
    clean: Estimate
    as_published: Estimate | None
    #: The difference of the two step times.
    lost_ns: Estimate
    #: Ratio of the slower step to the faster one.
    slowdown: Estimate


def clean_share(stall: str, times: Mapping[int, Floats]) -> Floats:
    """Share of the slower step that a stall takes, negative if the step that should be slower is not.

    ``stall``: one of :data:`STALLS`. ``times``: configuration -> step time, any unit, all of one shape.

    Examples
    --------
    >>> float(clean_share("interconnect", {1: np.array(100.0), 2: np.array(1000.0)}))
    0.9
    """
    less, more = (times[side] for side in SIDES[stall])
    return np.asarray((more - less) / more)


def published_share(stall: str, times: Mapping[int, Floats], synthetic_divisor: float = 1.0) -> Floats:
    """The same stall as Stash's code computes it.

    ``stall``: one of :data:`STALLS`. ``times``: totals of the configurations. Stash's synthetic runs process fewer
    samples than those with data. ``synthetic_divisor``: how many times fewer. Its code divides the numerators by it and
    not the denominators, which makes prep and fetch smaller by that factor. 1 where all are times per iteration, as
    ours are.

    Examples
    --------
    >>> float(published_share("network", {2: np.array(100.0), 5: np.array(500.0)}))
    4.0
    """
    d = synthetic_divisor
    if stall == "interconnect":
        return clean_share(stall, times)
    if stall == "network":
        return np.asarray((times[5] - times[2]) / times[2])
    prep = times[4] / d - times[2]
    if stall == "prep":
        return np.asarray(prep / times[4])
    return np.asarray((times[3] / d - prep) / times[3])


def step_time(runs_ns: Sequence[float]) -> Estimate:
    """Median over runs of the step time in one configuration, and its interval."""
    return _estimate({1: np.asarray(runs_ns, dtype=np.float64)}, lambda times: times[1])


def stalls(runs_ns: Mapping[int, Sequence[float]]) -> dict[str, Stall]:
    """Stalls of a characterization, with intervals; those whose configurations were not measured are missing.

    ``runs_ns``: configuration -> mean step time of each run, in the order of the repetitions; NaN for a run that
    failed. Runs of one repetition were made one after the other and are resampled together: what slows the machine down
    for some minutes slows all of them, and cancels.

    Notes
    -----
    The interval is that of the percentile bootstrap over repetitions, its deviations widened by
    ``t / z * sqrt(n / (n - 1))``: with few repetitions the plain one is too narrow (Hesterberg, The American
    Statistician 69(4), 2015, section 3.2), and a side on which no resample lies takes the deviation of the other. In
    simulations it then holds the truth in 94 of 100 cases with three repetitions, in 96 and more from four.
    """
    times = {k: np.asarray(v, dtype=np.float64) for k, v in runs_ns.items() if np.isfinite(v).any()}
    out = {}
    for name, (less, more) in SIDES.items():
        if not {less, more} <= times.keys():
            continue
        both = {less: times[less], more: times[more]}
        published = None
        if times.keys() >= {*_PUBLISHED_NEEDS[name]}:
            needed = {k: times[k] for k in _PUBLISHED_NEEDS[name]}
            published = _estimate(needed, functools.partial(published_share, name))
        out[name] = Stall(
            clean=_estimate(both, functools.partial(clean_share, name)),
            as_published=published,
            lost_ns=_estimate(both, functools.partial(_lost, name)),
            slowdown=_estimate(both, functools.partial(_slowdown, name)),
        )
    return out


def _lost(stall: str, times: Mapping[int, Floats]) -> Floats:
    less, more = SIDES[stall]
    return np.asarray(times[more] - times[less])


def _slowdown(stall: str, times: Mapping[int, Floats]) -> Floats:
    less, more = SIDES[stall]
    return np.asarray(times[more] / times[less])


def _estimate(runs: Mapping[int, Floats], statistic: Callable[[Mapping[int, Floats]], Floats]) -> Estimate:
    count = max(len(v) for v in runs.values())
    table = np.full((len(runs), count), np.nan)
    for row, values in zip(table, runs.values(), strict=True):
        row[: len(values)] = values
    fewest = int(np.isfinite(table).sum(axis=1).min())
    value = float(statistic(_medians(runs, table[:, None, :])).item())
    if fewest < 2:
        return Estimate(value, np.nan, np.nan, fewest)
    drawn = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, count))
    resampled = statistic(_medians(runs, table[:, drawn]))
    deviation = _both_sides(np.nanpercentile(resampled, (2.5, 97.5)) - value)
    low, high = value + deviation * (student(fewest - 1) / NORMAL * np.sqrt(fewest / (fewest - 1)))
    return Estimate(value, min(float(low), value), max(float(high), value), fewest)


def _both_sides(deviation: Floats) -> Floats:
    """Deviations below and above a value, that of a side on which no resample lies being that of the other.

    The median of three is the least or the largest that resamples of three can give in one of seven studies. That says
    nothing of that side: the truth lies beyond it as often as beyond the other.
    """
    low, high = min(float(deviation[0]), 0.0), max(float(deviation[1]), 0.0)
    nothing = _NOTHING * (high - low)
    return np.array([-high if -low <= nothing else low, -low if high <= nothing else high])


def _medians(runs: Mapping[int, Floats], drawn: Floats) -> dict[int, Floats]:
    """Configuration -> median of each resample; NaN where a resample holds failed runs alone."""
    sorted_runs = np.sort(drawn, axis=-1)  # NaN comes last
    count = np.isfinite(drawn).sum(axis=-1, keepdims=True)
    low = np.take_along_axis(sorted_runs, np.maximum(count - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(sorted_runs, np.maximum(count, 1) // 2, axis=-1)
    middle = np.where(count > 0, (low + high) / 2, np.nan)[..., 0]
    return dict(zip(runs, middle, strict=True))
