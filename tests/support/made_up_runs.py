"""Runs as a comparison sees them, with planted times, for tests of what decides by them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.steps_of_run import StepsOfRun

MS = 1_000_000
FACTS = {"ranks": 1, "batch": 8, "device": "none"}
#: By how much steps of one run spread, and the means of equal runs, as on a quiet machine (benchmarks/results/gate.md).
STEP_RATIO, RUN_RATIO = 0.04, 0.007


def made_up_run(
    random: np.random.Generator,
    kinds_ms: Mapping[str, float],
    *,
    steps: int = 60,
    others: float = 0.05,
    ranks: int = 1,
) -> StepsOfRun:
    """Return a run whose kinds take so long in the mean; ``others``: CPUs that other programs use, which slow it."""
    run_ratio = 1 + RUN_RATIO * random.standard_normal()
    times = {
        kind: np.rint(mean * MS * run_ratio * (1 + STEP_RATIO * random.standard_normal(steps))).astype(np.int64)
        for kind, mean in kinds_ms.items()
        if mean
    }
    step = np.sum(list(times.values()), axis=0)
    taken = np.rint(step * max(others - 0.1, 0.0)).astype(np.int64)
    times["other"] = times.get("other", np.zeros(steps, dtype=np.int64)) + taken
    times = {"step": step + taken, **times}
    means = {rank: {kind: float(values.mean()) for kind, values in times.items()} for rank in range(ranks)}
    cpus = CpuUse(float(taken.mean()) + 1000.0, others, 0.0)
    return StepsOfRun("made up", times, steps, means, {**FACTS, "ranks": ranks}, cpus=cpus)
