"""Step time of one run of a characterization, and its attribution.

The mean, not the median: with four workers three of four steps do not wait for data, and their median would deny a
stall that is there. Steps in which an epoch begins are left out, for a short run has more of them than the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse, cpu_use
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.steps.steps import step_at
from stashtrace.analysis.steps.training_loop import UPDATE_KINDS
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, ProcessRole, Severity
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.units import ranks_text

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
        own = np.flatnonzero(steps["rank"] == rank)
        if not len(own):
            continue
        own = own[np.argsort(steps["begin_ns"][own])]
        # Where a wait ends its batch is used: the step before may have asked for it.
        for moment in ("begin_ns", "end_ns"):
            at = np.searchsorted(steps["begin_ns"][own], batches[moment][first][batches["rank"][first] == rank]) - 1
            numbers.append(steps["step"][own[np.clip(at, 0, len(own) - 1)]])
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
        for row in trace.metadata.rows()
        if trace.text(row["key_code"]) == key and trace.text(row["value_code"]) == value
    }
    ranks = {rank for rank in rank_of.values() if rank >= 0}
    doubts = dict.fromkeys(  # in order, each once
        trace.text(row["advice_code"])
        for row in trace.losses.rows()
        if trace.text(row["name_code"]) in _NAMES and row["severity_code"] != Severity.INFO
    )
    return SyntheticData(tuple(sorted(replayed & ranks)), tuple(sorted(ranks - replayed)), tuple(doubts))
