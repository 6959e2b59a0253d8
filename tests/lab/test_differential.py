"""Five steps to four stalls: worked numbers of others, both conventions, and what the intervals promise."""

from __future__ import annotations

import numpy as np
import pytest
from published_runs import MG_WFBP

from stashtrace.lab.characterize import run_figures
from stashtrace.lab.characterize.run_figures import clean_share, published_share, stalls


def one(**times: float) -> dict[int, list[float]]:
    return {int(name[1]): [value] for name, value in times.items()}


@pytest.mark.parametrize(
    ("stall", "times", "clean", "published"),
    [
        ("interconnect", one(t1=100, t2=1000), 0.9, 0.9),
        ("network", one(t2=100, t5=500), 0.8, 4.0),
        ("prep", one(t2=100, t4=150), 1 / 3, 1 / 3),
        ("fetch", one(t2=100, t3=300, t4=150), 0.5, 250 / 300),
    ],
)
def test_worked_numbers_in_both_conventions(
    stall: str, times: dict[int, list[float]], clean: float, published: float
) -> None:
    found = stalls(times)[stall]
    assert found.clean.value == pytest.approx(clean)
    assert found.as_published.value == pytest.approx(published)
    assert np.isnan(found.clean.low), "one run says nothing of its spread"


def test_network_slowdown_is_five() -> None:
    assert stalls(one(t2=100, t5=500))["network"].slowdown.value == 5.0


def test_published_prep_with_fewer_synthetic_samples() -> None:
    """Stash's code halves the numerator and not the denominator."""
    times = {k: np.array(float(v)) for k, v in {2: 100, 3: 600, 4: 300}.items()}
    assert published_share("prep", times, 2.0) == pytest.approx((150 - 100) / 300)
    assert published_share("fetch", times, 2.0) == pytest.approx((300 - 50) / 600)


@pytest.mark.parametrize("case", MG_WFBP)
def test_exposed_communication_of_published_iteration_times(case: str) -> None:
    alone, together, expected = MG_WFBP[case]
    for seconds, percent in zip(together, expected, strict=True):
        assert round(100 * float(clean_share("interconnect", {1: np.array(alone), 2: np.array(seconds)}))) == percent


class TestIntervals:
    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fewer resamples than in earnest, for many characterizations."""
        monkeypatch.setattr(run_figures, "_RESAMPLES", 200)

    def test_a_drift_that_all_steps_share_cancels(self) -> None:
        """The machine slows down by a half meanwhile; the stall stays a quarter, and the interval knows it."""
        drift = np.linspace(1.0, 1.5, 5)
        found = stalls({1: 75 * drift, 2: 100 * drift})["interconnect"].clean
        assert found.value == pytest.approx(0.25)
        assert found.high - found.low < 1e-9

    @pytest.mark.parametrize("runs", [2, 3, 4, 5])
    def test_a_side_without_a_resample_is_not_certain(self, runs: int) -> None:
        """Of three repetitions the difference of medians may be the least that resamples give; the truth goes below."""
        random = np.random.default_rng(40 + runs)
        for _ in range(100):
            drift = random.normal(0, 1, runs)
            times = {1: 100 + drift + random.normal(0, 1, runs), 2: 120 + drift + random.normal(0, 1, runs)}
            found = stalls(times)["interconnect"]
            assert found.lost_ns.low < found.lost_ns.value < found.lost_ns.high
            assert found.clean.low < found.clean.value < found.clean.high

    def test_failed_runs_are_left_out(self) -> None:
        found = stalls({1: [100, np.nan, 101, 99], 2: [200, 202, np.nan, 198]})["interconnect"].clean
        assert found.value == pytest.approx(0.5, abs=0.01)
        assert found.runs_count == 3
        assert "network" not in stalls({1: [1.0], 2: [2.0], 5: [np.nan]})

    @pytest.mark.parametrize("runs", [3, 5, 8])
    def test_no_difference_is_no_stall(self, runs: int) -> None:
        """The same step measured as if it were two: the interval holds 0 in at least nine of ten."""
        random = np.random.default_rng(runs)
        held = 0
        for _ in range(200):
            found = stalls({1: random.normal(100, 3, runs), 2: random.normal(100, 3, runs)})
            clean = found["interconnect"].clean
            held += clean.low <= 0 <= clean.high
        assert held >= 180

    @pytest.mark.parametrize(("runs", "least"), [(3, 172), (4, 185), (8, 185)])
    def test_the_truth_is_inside(self, runs: int, least: int) -> None:
        random = np.random.default_rng(100 + runs)
        inside = 0
        for _ in range(200):
            found = stalls({2: random.normal(100, 3, runs), 5: random.normal(125, 4, runs)})["network"].clean
            inside += found.low <= 0.2 <= found.high
        assert inside >= least


def test_more_repetitions_than_the_table_of_student_has() -> None:
    found = run_figures.step_time(np.random.default_rng(1).normal(100, 1, 40).tolist())
    assert 99 < found.low < found.value < found.high < 101
