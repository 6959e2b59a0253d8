"""What would hide the making of batches: a loader that waits needs few CPUs, whoever uses them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from stashtrace.analysis.findings.facts import RankFacts
from stashtrace.analysis.findings.making import PARTS, Making, advice_of, handoff_code
from stashtrace.analysis.stalls.cpus import HostCpu
from stashtrace.schema.events import BATCHES
from stashtrace.schema.table import Table

MS = 1_000_000


def rank(step_ms: int, waits_ms: int) -> RankFacts:
    kinds = {"prep": 20 * waits_ms * MS, "compute": 20 * (step_ms - waits_ms) * MS}
    return RankFacts(0, "node", 20, step_ms * MS, step_ms * MS, 20 * step_ms * MS, kinds, kinds, kinds, {})


def making(workers: int, *, pass_count: int = 0, **parts_ms: int) -> Making:
    parts = {part: float(parts_ms.get(part, 0) * MS) for part in PARTS}
    return Making(Table.from_rows(BATCHES, []), workers, sum(parts.values()), parts, 0.0, 1.0, pass_count)


def cpus(others: float, *, main_ms_per_s: float = 300) -> HostCpu:
    return HostCpu(2.0, others, 0.99, 0.0, {0: main_ms_per_s * MS})


@pytest.mark.parametrize("part", ["asleep", "network", "storage", "blocked"])
@pytest.mark.parametrize("workers", [0, 1])
def test_more_workers_help_a_loader_that_waits_though_others_use_all_cpus(part: str, workers: int) -> None:
    advice = advice_of(rank(90, 60), making(workers, cpu=3, queue=12, **{part: 45}), cpus(1.9), 1)
    assert advice is not None
    assert advice.code == ("more_workers" if workers else "use_workers")
    assert advice.condition == part
    assert advice.workers == 2


def test_more_workers_do_not_help_a_loader_that_computes_while_others_use_the_cpus() -> None:
    advice = advice_of(rank(90, 60), making(1, cpu=40, queue=20), cpus(1.9), 1)
    assert advice is not None
    assert advice.code == "others_use_cpus"


def test_more_workers_do_not_help_where_the_job_itself_fills_the_cpus() -> None:
    advice = advice_of(rank(90, 60), making(2, cpu=150, queue=2), cpus(0.0, main_ms_per_s=600), 1)
    assert advice is not None
    assert advice.code == "cpus_are_full"


def test_the_limit_of_the_cpus_is_never_above_the_step_that_they_allow_now() -> None:
    advice = advice_of(rank(90, 60), making(0, cpu=8, queue=7, asleep=45), cpus(1.9), 1)
    assert advice is not None
    assert advice.floor_ns < 90 * MS


@pytest.mark.parametrize(
    ("queue", "others", "code"),
    [
        (2, 1.9, "fewer_larger_batches"),
        (30, 1.9, "others_use_cpus"),
        (30, 0.0, "cpus_are_full"),
    ],
)
def test_hand_over_that_waits_for_cpus_is_no_reason_for_larger_batches(queue: int, others: float, code: str) -> None:
    assert handoff_code(making(2, cpu=8, queue=queue), cpus(others)) == code


def test_the_cpu_time_of_training_is_no_limit_of_validation() -> None:
    """A short step that waits most of its time, beside training that computes."""
    advice = advice_of(rank(18, 13), making(0, asleep=12, cpu=1), cpus(0.0, main_ms_per_s=620), 1, training=False)
    assert advice is not None
    assert (advice.code, advice.workers, advice.floor_ns) == ("use_workers", 3, -1)


def test_no_more_workers_than_a_pass_has_batches() -> None:
    advice = advice_of(rank(30, 29), making(2, asleep=60, pass_count=8), cpus(0.0), 1, training=False)
    assert advice is not None
    assert (advice.code, advice.workers, advice.condition) == ("more_workers", 8, "pass")
    assert advice.floor_ns == 60 * MS / 8
