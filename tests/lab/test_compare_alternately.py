"""Alternate runs until the gate decides: which runs are used, how many are made, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from made_up_runs import made_up_run

from stashtrace.analysis.compare.gate_verdict import Condition
from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.lab.alternating import Compared, compare_alternately, is_contended, stages

STEP = [Condition.of("step+5%")]


def compared(
    before_ms: float, after_ms: float, others: Callable[[str, int], float], rounds: Sequence[int] = (3, 6)
) -> tuple[Compared, list[str]]:
    """Compare two jobs whose runs meet the other work that ``others(side, number)`` gives; and the order of runs."""
    random, order = np.random.default_rng(4), []

    def side(name: str, step_ms: float) -> Callable[[], StepsOfRun]:
        def run() -> StepsOfRun:
            order.append(name)
            return made_up_run(random, {"compute": step_ms}, others=others(name, order.count(name)))

        return run

    return compare_alternately(side("a", before_ms), side("b", after_ms), STEP, rounds=rounds), order


def quiet(name: str, number: int) -> float:
    return 0.05


def test_it_ends_as_soon_as_the_runs_decide() -> None:
    found, order = compared(40, 60, quiet)
    assert (found.verdict, found.runs_count, found.contended_count) == ("worse", 6, 0)
    assert "".join(order) == "abbaab"
    assert compared(40, 40, quiet)[0].verdict == "not worse"


def test_more_rounds_where_they_do_not() -> None:
    found, _ = compared(40, 42, quiet, stages(3, 3))
    assert found.runs_count == 18
    assert found.verdict == "inconclusive"


def test_disturbed_rounds_are_repeated() -> None:
    """Two of the first four runs of the changed job meet another program, which alone would make it worse."""
    found, order = compared(40, 40, lambda name, number: 0.9 if name == "b" and number in (1, 3) else 0.05)
    assert (found.verdict, found.contended_count, len(order)) == ("not worse", 2, 10)


def test_a_job_that_never_meets_a_quiet_machine_is_not_judged_by_chance() -> None:
    found, _ = compared(40, 40, lambda name, number: 0.9 if (number + (name == "a")) % 2 else 0.05)
    assert found.gate is None
    assert (found.verdict, found.runs_count, found.contended_count) == ("inconclusive", 24, 12)


def test_programs_of_the_job_that_are_not_recorded_do_not_hide_it() -> None:
    """Each run of the changed job has a separate decoder, which counts as other work."""
    found, _ = compared(40, 40, lambda name, number: 0.6 if name == "b" else 0.05)
    assert (found.verdict, found.runs_count, found.contended_count) == ("worse", 12, 0)


def test_runs_that_say_nothing_of_other_work_are_used() -> None:
    random = np.random.default_rng(1)
    one, other = (made_up_run(random, {"compute": 40}, others=others) for others in (0.05, 0.9))
    assert is_contended(other, one)
    assert not is_contended(one, other)
    assert not is_contended(replace(other, cpus=None), one)
