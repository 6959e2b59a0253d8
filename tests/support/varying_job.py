"""Steps of made-up balanced jobs whose sequences vary in length, and which growing stalls are found in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.live.table import LIVE_STEPS
from stashtrace.live.triggers import Growth, GrowthTrigger
from stashtrace.schema.table import Table

MS = 1e6
RANKS = 8
#: Rounds of the follower: it sees some steps at a time.
ROUND_STEPS = 37


def varying_job(
    seed: int,
    steps_count: int,
    *,
    spread: float = 0.6,
    memory: float = 0.0,
    slower_reads_ms: float = 0.0,
    slower_compute_ms: float = 0.0,
    since: int = 0,
) -> Table:
    """Rows of ``live_steps`` of a balanced job.

    ``spread``: of the logarithm of the sequence lengths. ``memory``: how similar the lengths of two steps in a row are.
    ``slower_reads_ms``, ``slower_compute_ms``: what rank 3 has more of in each step from ``since`` on.
    """
    random = np.random.default_rng(seed)
    size = (steps_count, RANKS)
    noise = random.normal(size=steps_count)
    common = np.zeros(steps_count)
    for step in range(1, steps_count):
        common[step] = memory * common[step - 1] + np.sqrt(1 - memory**2) * noise[step]
    own_part = 0.7 if memory else 1.0
    lengths = np.exp(spread * (own_part * random.normal(size=size) + np.sqrt(1 - own_part**2) * common[:, None]))
    spent = {
        "compute_ns": 70 * MS * lengths,
        "prep_ns": random.gamma(0.5, 4 * MS, size) * lengths,
        "fetch_ns": np.where(random.random(size) < 0.02, random.lognormal(3.0, 1.0, size) * MS, 0.0),
        "python_ns": random.gamma(4.0, 0.5 * MS, size),
    }
    spent["fetch_ns"][since:, 3] += random.gamma(2.0, slower_reads_ms * MS / 2, steps_count - since)
    spent["compute_ns"][since:, 3] += slower_compute_ms * MS
    own = sum(spent.values(), np.zeros(size))
    spent["straggler_ns"] = own.max(axis=1, keepdims=True) - own
    spent["network_ns"] = np.repeat(random.gamma(20.0, 0.5 * MS, (steps_count, 1)), RANKS, axis=1)
    length = sum(spent.values(), np.zeros(size))
    begins = np.cumsum(length, axis=0) - length
    latest = np.repeat(own.argmax(axis=1)[:, None], RANKS, axis=1)

    def flat(values: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        return np.rint(values).astype(np.int64).reshape(-1)

    columns: dict[str, npt.NDArray[np.generic]] = {
        name: flat(spent.get(name, np.zeros(size))) for name in LIVE_STEPS.names
    }
    columns["rank"] = np.tile(np.arange(RANKS), steps_count)
    columns["step"] = np.repeat(np.arange(steps_count), RANKS)
    columns["step_kind"] = np.full(steps_count * RANKS, "train", dtype=object)
    columns["begin_ns"], columns["end_ns"] = flat(begins), flat(begins + length)
    columns["cause_rank"] = flat(np.where(spent["straggler_ns"] > 0, latest, -1))
    return Table(LIVE_STEPS, columns)


def growths(job: Table, round_steps: int = ROUND_STEPS) -> list[Growth]:
    trigger, found = GrowthTrigger(), []
    for first in range(0, int(job["step"].max()) + 1, round_steps):
        found += trigger.round(job.take((job["step"] >= first) & (job["step"] < first + round_steps)))
    return found
