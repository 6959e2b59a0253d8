"""The steps of one run as a comparison needs them: their length, and the time of each kind in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse, cpu_use, worker_wait_ns
from stashtrace.analysis.compare.function_times import FunctionsOfRun
from stashtrace.analysis.compare.job_identity import job_facts, recording_id
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.analysis.steps.step_time import step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import KIND_NAMES, kinds_of_word
from stashtrace.schema.trace import Trace

#: Name of the wall time among the kinds.
STEP = "step"
#: Kinds in the order of the enumeration, after the step itself.
KINDS = (STEP, *KIND_NAMES)
#: Values of a kind that a baseline keeps at most; of longer runs each is the mean of several neighbouring steps.
KEPT_STEPS = 512


def parts_of(kind: str) -> tuple[str, ...]:
    """Return what a word for a time of a step sums: ``step`` and kinds are themselves, a column has several kinds."""
    return kinds_of_word(kind) or (kind,)


@dataclass(frozen=True, slots=True)
class StepsOfRun:
    """The steps that the step time of a run is made of, each the mean over its ranks."""

    #: What a person calls the run: its path, or the name of its baseline.
    name: str
    #: ``step`` and kinds that occur -> time in each step, in the order of the steps.
    times_ns: Mapping[str, Int64]
    #: Steps that these values come from.
    steps_count: int
    #: Rank -> mean of each of them over its steps.
    ranks_ns: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    #: See :func:`stashtrace.analysis.compare.job_identity.job_facts`.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Mean time of a step for which a step thread could run but had no CPU; None if unknown.
    cpu_wait_ns: float | None = None
    #: Id that the recorder gave the run, the path of files of other tools, or empty.
    recording: str = ""
    #: The same of the workers of a rank, while they made batches.
    worker_wait_ns: float | None = None
    #: Who used the CPUs; None where the machine was not sampled.
    cpus: CpuUse | None = None
    #: Command that was recorded; empty if it is not known.
    launch: tuple[str, ...] = ()
    #: In which it ran; empty if that is not known.
    directory: str = ""
    #: Time of the user's functions; None where no stacks were recorded, or nobody asked for them.
    functions: FunctionsOfRun | None = None

    def of(self, kind: str) -> Int64:
        """Time in each step of a kind, or of all kinds of a column of the summary, ns; zeros if it does not occur."""
        total = np.zeros(len(self.times_ns[STEP]), dtype=np.int64)
        for part in parts_of(kind):
            total = total + self.times_ns.get(part, 0)
        return int64(total)

    def mean_of_rank(self, rank: int, kind: str) -> float:
        """Mean of such a time over the steps of one rank, ns."""
        return sum(self.ranks_ns[rank].get(part, 0.0) for part in parts_of(kind))

    @property
    def kinds(self) -> list[str]:
        """``step`` and the kinds that occur, in the order of the enumeration."""
        return [kind for kind in KINDS if kind in self.times_ns]

    def condensed(self, most: int = KEPT_STEPS) -> StepsOfRun:
        """Return the run with at most this number of values of a kind, means of equally many neighbouring steps.

        What is left over at the beginning, fewer steps than one mean is made of, is left out.
        """
        count = len(self.times_ns[STEP])
        size = -(-count // most)
        if size == 1:
            return self
        kept = count // size * size
        times = {
            kind: int64(np.rint(values[count - kept :].reshape(-1, size).mean(axis=1)))
            for kind, values in self.times_ns.items()
        }
        return replace(self, times_ns=times)


def is_same_recording(one: StepsOfRun, other: StepsOfRun) -> bool:
    """Return whether two runs are one recording, or a copy of it: the same id, and each step equal to the ns."""
    if not one.recording or one.recording != other.recording:
        return False
    most = min(len(run.times_ns[STEP]) for run in (one, other))
    first, second = one.condensed(most), other.condensed(most)
    return first.kinds == second.kinds and all(
        np.array_equal(first.times_ns[kind], second.times_ns[kind]) for kind in first.kinds
    )


def steps_of_run(trace: Trace, name: str = "") -> StepsOfRun:
    """Return the steps of a trace for a comparison.

    ``trace``: needs steps. ``name``: what to call the run; its path if left out. Raises MissingDataError if no rank has
    a step.
    """
    steps = find_steps(trace)
    counted = step_time_steps(steps)
    by_step, by_rank = GroupBy(counted["step"]), GroupBy(counted["rank"])
    walls = counted["end_ns"] - counted["begin_ns"]
    table = stalls(trace, warmup=True)
    in_step = GroupBy.numbered(by_step.find(table["step"]), len(by_step))
    # Only rows of counted steps: a rank may lack a step that others have.
    rank_steps = GroupBy(counted["rank"], counted["step"])
    is_counted = rank_steps.find(table["rank"], table["step"]) >= 0
    in_rank = GroupBy.numbered(by_rank.find(table["rank"]), len(by_rank))
    times, means = {STEP: int64(by_step.sum(walls) // by_step.sizes)}, {STEP: by_rank.sum(walls) / by_rank.sizes}
    present = set(np.unique(table["kind"]).tolist())
    for kind in KINDS:
        chosen = (table["kind"] == kind) & is_counted if kind in present else None
        if chosen is None or not table["stall_ns"][chosen].any():
            continue
        times[kind] = int64(in_step.sum(table["stall_ns"], where=chosen) // by_step.sizes)
        means[kind] = in_rank.sum(table["stall_ns"], where=chosen) / by_rank.sizes
    ranks = {
        int(rank): {kind: round(float(values[at]), 1) for kind, values in means.items()}
        for at, rank in enumerate(by_rank.values.tolist())
    }
    facts = job_facts(trace, counted, np.unique(table["method"][is_counted]).tolist())
    return StepsOfRun(
        name or trace.path,
        times,
        len(by_step),
        ranks,
        facts,
        _cpu_wait_ns(trace, rank_steps),
        recording_id(trace),
        worker_wait_ns(trace, counted),
        cpu_use(trace, counted),
    )


def _cpu_wait_ns(trace: Trace, counted: GroupBy) -> float | None:
    """Mean CPU contention of a counted step of a rank, ns; ``counted`` groups by rank and step."""
    table = hidden(trace)
    known = (table["cpu_contention_ns"] >= 0) & (counted.find(table["rank"], table["step"]) >= 0)
    return round(float(table["cpu_contention_ns"][known].mean()), 1) if known.any() else None
