"""Candidates, budgets and the Pareto front: worked numbers of others, and what must hold of any answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_runs import COUNTS, MG_WFBP, MODELS, RUNS

from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab.number_intervals import Interval, exactly
from stashtrace.lab.recommend.elasticity import elasticity
from stashtrace.lab.recommend.instance_catalog import Catalog, Instance, load_catalog
from stashtrace.lab.recommend.profile import Profile
from stashtrace.lab.recommend.recommend import (
    Budget,
    Candidate,
    Recommendation,
    Work,
    pareto_marked,
    recommend,
    same_price,
)
from stashtrace.lab.recommend.recommendation_text import choices

AWS = load_catalog()


def ran(instance: str, devices: int, steps: Mapping[int, float], batch: int = 32, **more: object) -> Profile:
    """A characterization with steps in seconds, and no doubt about them."""
    exact = {number: exactly(seconds * 1e9) for number, seconds in steps.items()}
    facts: dict[str, object] = {"network_instance": instance, "network_devices_count": devices} | more
    return Profile("c.json", instance, devices, (), batch, exact, **facts)  # type: ignore[arg-type]


def named(answer: Recommendation, instance: str, count: int = 1) -> Candidate:
    return next(one for one in answer.candidates if (one.instance, one.count) == (instance, count))


class TestNetworkedPairOfTheSamePrice:
    """Stash: both pairs cost what the large instance costs, so what they lose in time they lose in money."""

    @pytest.mark.parametrize(
        ("whole", "half", "devices"), [("p3.16xlarge", "p3.8xlarge", 8), ("p2.16xlarge", "p2.8xlarge", 16)]
    )
    @pytest.mark.parametrize("slowdown", [1.0, 1.4, 5.0])
    def test_slowdown_is_the_ratio_of_costs(self, whole: str, half: str, devices: int, slowdown: float) -> None:
        one = ran(whole, devices, {1: 0.1, 2: 0.2, 5: 0.2 * slowdown}, network_hosts_count=2, network_instance=half)
        answer = recommend([one], AWS, Work(iterations=18_000), data="synthetic")
        large, pair = named(answer, whole), named(answer, half, 2)
        assert large.measured
        assert pair.measured
        assert same_price(large, pair)
        assert large.priced
        assert pair.priced
        assert large.hours.value == pytest.approx(1.0)
        assert large.cost.value == pytest.approx(AWS.instances[whole].price_per_hour)
        assert pair.cost.value / large.cost.value == pytest.approx(slowdown)
        assert pair.share("network") == pytest.approx(1 - 1 / slowdown)
        assert pair.share("interconnect") == pytest.approx(0.5 / slowdown)


class TestPublishedNumbers:
    @pytest.mark.parametrize("case", MG_WFBP)
    def test_exposed_communication(self, case: str) -> None:
        alone, together, percents = MG_WFBP[case]
        for seconds, percent in zip(together, percents, strict=True):
            node = Catalog({"node": Instance("node", "K80", 2, price_per_hour=1.0, currency="USD")})
            answer = recommend([ran("node", 2, {1: alone, 2: seconds})], node, Work(iterations=10), max_count=1)
            assert round(100 * named(answer, "node").share("interconnect")) == percent

    @pytest.mark.parametrize(
        ("network", "method", "efficiency"),
        [
            ("10GbE", "BSP-A2A", 0.608),
            ("10GbE", "WFBP-A2A", 0.631),
            ("10GbE", "MG-WFBP", 0.850),
            ("100GbIB", "WFBP-A2A", 0.905),
            ("100GbIB", "MG-WFBP", 0.972),
        ],
    )
    def test_scaling_efficiency_of_resnet50_on_32(self, network: str, method: str, efficiency: float) -> None:
        batch, single = MODELS["resnet50"]
        rate = RUNS["resnet50", network, method][COUNTS.index(32)][0]
        steps = {1: batch / single, 5: 32 * batch / rate}
        one = ran("node4", 4, steps, batch, network_hosts_count=8, network_devices_count=32)
        nodes = Catalog({"node4": Instance("node4", "V100", 4)})
        rows = elasticity(recommend([one], nodes, Work(iterations=1)).candidates, [one], nodes)
        last = next(row for row in rows if row.devices_count == 32)
        assert round(last.efficiency, 3) == efficiency
        assert last.samples_per_s.value == pytest.approx(rate)
        assert last.measured

    def test_interconnect_of_bert_large_in_one_node(self) -> None:
        """4 * 49 / 56.0 = 3.50, an interconnect stall of 71 %."""
        answer = recommend([ran("node4", 4, {1: 8 / 49, 2: 32 / 56.0}, 8)], Catalog(), Work(iterations=1))
        one = named(answer, "node4")
        assert round(one.step.value / 1e9 * 49 / 8, 2) == 3.50
        assert round(100 * one.share("interconnect")) == 71
        assert one.limited_by == one.worst_stall == "interconnect"

    def test_a_second_node_halves_the_throughput_of_bert_large(self) -> None:
        """29.1 samples/s on two nodes against 56.0 on one: 3.9 times the time of a step, and of the money."""
        four, eight = (RUNS["bert-large", "10GbE", "WFBP-A2A"][COUNTS.index(count)][0] for count in (4, 8))
        steps = {1: 8 / 49, 2: 32 / four, 5: 64 / eight}
        one = ran("node4", 4, steps, 8, network_hosts_count=2, network_devices_count=8)
        nodes = Catalog({"node4": Instance("node4", "V100", 4, price_per_hour=8.0, currency="USD")})
        answer = recommend([one], nodes, Work(samples=1e6), data="synthetic", max_count=2)
        alone, pair = named(answer, "node4"), named(answer, "node4", 2)
        assert round(pair.step.value / alone.step.value, 1) == 3.9
        assert pair.hours.value > 1.9 * alone.hours.value
        assert alone.priced
        assert pair.priced
        assert round(pair.cost.value / alone.cost.value, 1) == 3.9
        assert (alone.pareto, pair.pareto) == (True, False)
        assert pair.limited_by == "network"


class TestWork:
    first = ran("p3.8xlarge", 4, {2: 1.0})

    def test_samples_are_shared_out(self) -> None:
        assert Work(samples=1_281_167, epochs=90).steps(32, 4, self.first) == pytest.approx(1_281_167 * 90 / 128)

    def test_iterations_are_those_of_the_first_characterization(self) -> None:
        assert Work(iterations=1000).steps(32, 8, self.first) == 500
        assert Work(iterations=1000).steps(64, 4, self.first) == 500
        assert Work(iterations=1000).steps(0, 4, self.first) == 1000

    def test_first_epoch_cold_and_the_rest_warm(self) -> None:
        one = ran("p3.8xlarge", 4, {1: 1.0, 2: 1.0, 3: 3.0, 4: 2.0})
        mean = {}
        for data in ("auto", "cold", "warm", "synthetic"):
            mean[data] = named(recommend([one], AWS, Work(samples=1e5, epochs=4), data=data), "p3.8xlarge").step.value
        assert mean == {"auto": pytest.approx(2.25e9), "cold": 3e9, "warm": 2e9, "synthetic": 1e9}
        parts = named(recommend([one], AWS, Work(samples=1e5, epochs=4)), "p3.8xlarge").parts_ns
        assert parts["prep"] == pytest.approx(1e9)
        assert parts["fetch"] == pytest.approx(0.25e9)

    def test_an_unknown_batch_needs_to_be_given(self) -> None:
        with pytest.raises(UsageError, match="does not know its batch"):
            recommend([ran("p3.8xlarge", 4, {2: 1.0}, 0)], AWS, Work(samples=1e5))


#: Seconds of the five configurations of a job with 8 devices, the fifth on two hosts of 4.
FIVE = {1: 0.10, 2: 0.13, 3: 0.20, 4: 0.15, 5: 0.25}


class TestCandidates:
    def answer(self, budget: Budget | None = None, **more: object) -> Recommendation:
        one = ran("p3.16xlarge", 8, FIVE, network_hosts_count=2, network_instance="p3.8xlarge")
        return recommend([one], AWS, Work(samples=1_281_167, epochs=10), budget, **more)  # type: ignore[arg-type]

    def test_sizes_and_counts_of_the_device_alone(self) -> None:
        answer = self.answer()
        assert {one.instance for one in answer.candidates} == {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}
        assert {one.count for one in answer.candidates} == {1, 2, 4, 8}
        assert answer.not_measured["p4d.24xlarge"] == "no characterization on A100-SXM4-40GB"
        assert answer.not_measured["p3dn.24xlarge"] == "no characterization on V100-SXM2-32GB"

    def test_only_what_ran_is_called_measured(self) -> None:
        assert [one.name for one in self.answer().candidates if one.measured] == ["p3.16xlarge"]
        ran_so = [one.name for one in self.answer(data="synthetic").candidates if one.measured]
        assert sorted(ran_so) == ["2x p3.8xlarge", "p3.16xlarge"]

    def test_parts_make_the_step(self) -> None:
        for one in self.answer().candidates:
            assert sum(one.parts_ns.values()) == pytest.approx(one.step.value, rel=1e-6)
            assert one.hours.low <= one.hours.value <= one.hours.high
            assert one.limited_by in one.parts_ns

    def test_nothing_beats_the_front_and_something_beats_the_rest(self) -> None:
        every = [(one.hours.value, one.cost.value, one.pareto) for one in self.answer().candidates if one.priced]
        for hours, cost, pareto in every:
            better = [1 for h, c, _ in every if h <= hours and c <= cost and (h, c) != (hours, cost)]
            assert pareto == (not better)
        front = sorted((cost, hours) for hours, cost, pareto in every if pareto)
        assert all(a[1] > b[1] for a, b in pairwise(front))

    def test_cheapest_in_time_and_fastest_for_the_money(self) -> None:
        every = self.answer().candidates
        hours = sorted(one.hours.value for one in every)[len(every) // 2]
        cost = sorted(one.cost.value for one in every if one.priced)[len(every) // 2]
        answer = self.answer(Budget(hours, cost))
        cheapest, fastest = answer.cheapest_within_time, answer.fastest_within_cost
        assert cheapest.priced
        assert cheapest.cost.value == min(one.cost.value for one in every if one.priced and one.hours.value <= hours)
        assert fastest.hours.value == min(one.hours.value for one in every if one.priced and one.cost.value <= cost)

    @pytest.mark.parametrize("budget", [Budget(hours=0.01), Budget(cost=0.01), Budget(0.01, 0.01)])
    def test_a_budget_that_nothing_meets_names_the_nearest(self, budget: Budget) -> None:
        answer = self.answer(budget)
        assert not answer.met
        assert answer.cheapest_within_time is None
        assert answer.fastest_within_cost is None
        assert answer.nearest is not None
        assert answer.candidates
        assert budget.overshoot(answer.nearest) == min(budget.overshoot(one) for one in answer.candidates)

    def test_each_budget_can_be_met_without_both(self) -> None:
        every = self.answer().candidates
        budget = Budget(min(one.hours.value for one in every), min(one.cost.value for one in every if one.priced))
        answer = self.answer(budget)
        assert answer.cheapest_within_time is not None
        assert answer.fastest_within_cost is not None
        assert not answer.met
        assert answer.nearest is not None

    def test_no_price_is_no_cost_and_comes_last(self) -> None:
        bare = Catalog({**AWS.instances, "p3.2xlarge": Instance("p3.2xlarge", "V100-SXM2-16GB", 1, vcpus_count=8)})
        one = ran("p3.16xlarge", 8, FIVE, network_hosts_count=2)
        answer = recommend([one], bare, Work(samples=1e6), Budget(cost=1e9))
        assert answer.candidates[-1].instance == "p3.2xlarge"
        assert not answer.candidates[-1].priced
        assert not answer.candidates[-1].pareto
        assert answer.fastest_within_cost.instance != "p3.2xlarge"
        assert any("no price for p3.2xlarge" in note for note in answer.notes)

    def test_an_empty_catalog_leaves_the_measured_machine(self) -> None:
        answer = recommend([ran("p3.16xlarge", 8, FIVE)], Catalog(), Work(samples=1e6), Budget(hours=1e6))
        assert {one.instance for one in answer.candidates} == {"p3.16xlarge"}
        assert all(not one.priced for one in answer.candidates)
        assert answer.cheapest_within_time is not None
        assert any("catalog is empty" in note for note in answer.notes)

    def test_prices_in_two_currencies(self) -> None:
        mixed = Catalog(
            {
                "a": Instance("a", "X", 1, price_per_hour=1.0, currency="USD"),
                "b": Instance("b", "X", 1, price_per_hour=1.0, currency="EUR"),
            }
        )
        with pytest.raises(UsageError, match="EUR and USD cannot be compared"):
            recommend([ran("a", 1, {1: 0.1})], mixed, Work(iterations=1))

    def test_part_of_a_host_in_use_is_said(self) -> None:
        answer = recommend([ran("p3.16xlarge", 4, {1: 0.1, 2: 0.11})], AWS, Work(iterations=10), max_count=1)
        used = {one.devices_count: one for one in answer.candidates if one.instance == "p3.16xlarge"}
        assert set(used) == {4, 8}
        assert used[4].measured
        assert "4 of 8 devices of each are in use" in used[4].notes
        assert not used[8].measured

    def test_a_device_of_another_name_is_said(self) -> None:
        one = Profile("c.json", "p3.8xlarge", 4, ("Tesla T4",), 32, {2: exactly(1e8)})
        assert any("ran on Tesla T4" in note for note in recommend([one], AWS, Work(iterations=1)).notes)

    def test_counts_of_which_nothing_is_said(self) -> None:
        answer = recommend([ran("p3.8xlarge", 4, {1: 0.1, 2: 0.2})], AWS, Work(iterations=1))
        assert {one.count for one in answer.candidates} == {1}
        said = "nothing is said of 2 and more p3.8xlarge, p3.2xlarge, p3.16xlarge: configuration 5 (several hosts) of"
        assert any(note.startswith(said) for note in answer.notes)

    def test_nothing_at_all(self) -> None:
        with pytest.raises(MissingDataError, match="nothing can be said of any instance: neither configuration 2"):
            recommend([ran("p3.8xlarge", 4, {5: 0.1})], Catalog(), Work(iterations=1))

    def test_other_batches_of_one_machine_are_not_called_a_price(self) -> None:
        """A step of twice the batch takes twice as long: not a stall, and no reason to rent another."""
        ones = [ran("p3.8xlarge", 4, {1: b / 400, 2: b / 380}, b) for b in (32, 64)]
        said = " ".join(part for one in choices(recommend(ones, AWS, Work(samples=1e6), max_count=1)) for part in one)
        assert "p3.8xlarge costs the same as p3.8xlarge" not in said
        assert "an hour of p3.8xlarge costs the same as one of p3.8xlarge" not in said

    def test_two_files_of_one_machine_are_said(self) -> None:
        one = ran("p3.8xlarge", 4, {2: 0.2})
        other = Profile("d.json", "p3.8xlarge", 4, (), 32, {2: exactly(3e8)})
        answer = recommend([one, other], AWS, Work(iterations=1))
        assert [c.step.value for c in answer.candidates if c.measured] == [2e8]
        assert any("d.json measured what c.json did" in note for note in answer.notes)

    def test_first_epoch_cold_needs_to_know_epochs(self) -> None:
        one = ran("p3.8xlarge", 4, {2: 1.0, 3: 3.0, 4: 2.0})
        answer = recommend([one], AWS, Work(iterations=10), data="first-cold", max_count=1)
        assert answer.candidates[0].step.value == 3e9
        assert "all epochs from storage: how long an epoch is was not said" in answer.candidates[0].notes

    def test_steps_that_failed_leave_the_rest(self) -> None:
        answer = recommend([ran("p3.8xlarge", 4, {4: 0.2})], AWS, Work(iterations=1))
        assert [(one.name, one.measured) for one in answer.candidates] == [("p3.8xlarge", True)]
        assert "configuration 1" in answer.not_measured["p3.16xlarge"]

    @pytest.mark.parametrize(("steps", "count"), [({2: 0.2}, 1), ({4: 0.2}, 1), ({2: 0.2, 5: 0.3}, 2)])
    def test_without_step_one_nobody_knows_what_is_lost(self, steps: dict[int, float], count: int) -> None:
        one = ran("p3.8xlarge", 4, steps, network_hosts_count=2, network_devices_count=8)
        answer = recommend([one], AWS, Work(iterations=1))
        found = named(answer, "p3.8xlarge", count)
        assert (found.limited_by, found.parts_known) == ("unknown", False)
        said = " ".join(part for sentences in choices(answer) for part in sentences)
        assert "computes all the time" not in said
        assert "what it loses was not measured" in said
        assert sum("holds" in note for note in found.notes) == 1


class TestElasticity:
    def profiles(self) -> list[Profile]:
        return [ran("p3.8xlarge", 4, {1: b / 400, 2: b / 400 + 0.05}, b) for b in (32, 64, 128)]

    def test_throughput_of_the_paper(self) -> None:
        """T(b, k) = b / (t_proc(b / k) + t_comm(k))."""
        rows = elasticity(recommend(self.profiles(), AWS, Work(samples=1e5)).candidates, self.profiles(), AWS)
        for row in rows:
            if row.instance == "p3.8xlarge" and row.count == 1:
                expected = row.total_batch_samples / (row.batch_samples / 400 + 0.05)
                assert row.samples_per_s.value == pytest.approx(expected)
                assert row.scaling_factor == pytest.approx(expected / 400)
                assert row.efficiency == pytest.approx(expected / 1600)

    def test_a_batch_kept_is_shared_out_where_its_parts_were_measured(self) -> None:
        rows = elasticity(recommend(self.profiles(), AWS, Work(samples=1e5)).candidates, self.profiles(), AWS)
        same = {(r.devices_count, r.batch_samples): r for r in rows if r.total_batch_samples == 512}
        assert (4, 128) in same
        assert (8, 64) in same
        assert same[4, 128].efficiency > same[8, 64].efficiency
        between = [r for r in rows if r.batch_samples not in (32, 64, 128)]
        assert all(32 < r.batch_samples < 128 and not r.measured for r in between)

    def test_without_step_one_there_is_no_curve(self) -> None:
        one = ran("p3.8xlarge", 4, {2: 0.2})
        assert elasticity(recommend([one], AWS, Work(iterations=1)).candidates, [one], AWS) == []

    def test_a_count_that_ran_with_another_batch_is_predicted(self) -> None:
        """One device was run with 32 samples; with 64 it is configuration 1 of the machine with four."""
        ones = [ran("p3.2xlarge", 1, {1: 0.08}, 32), ran("p3.8xlarge", 4, {1: 0.16, 2: 0.2}, 64)]
        rows = elasticity(recommend(ones, AWS, Work(samples=1e5)).candidates, ones, AWS)
        found = {r.batch_samples: r.measured for r in rows if (r.instance, r.count) == ("p3.2xlarge", 1)}
        assert found == {32: True, 64: False}

    def test_a_step_with_loading_is_no_step_without(self) -> None:
        """Steps 1 and 4 alone were measured: 0.3 s with four devices hold loading, and are not point of the curve."""
        one = ran("p3.8xlarge", 4, {1: 0.1, 4: 0.3})
        answer = recommend([one], AWS, Work(iterations=1), max_count=1, data="synthetic")
        assert not named(answer, "p3.8xlarge").measured
        assert {row.instance for row in elasticity(answer.candidates, [one], AWS)} == {"p3.2xlarge"}
        assert named(recommend([one], AWS, Work(iterations=1), max_count=1), "p3.8xlarge").measured

    def test_a_step_that_may_take_nothing(self) -> None:
        """The interval of two runs far apart; no division by zero."""
        one = Profile("c.json", "p3.8xlarge", 4, (), 32, {1: Interval(1e8, 0.0, 9e8), 2: Interval(2e8, 0.0, 9e8)})
        rows = elasticity(recommend([one], AWS, Work(samples=1e5)).candidates, [one], AWS)
        assert any(math.isinf(row.samples_per_s.high) for row in rows)


class TestWhatIsSaid:
    def test_a_device_whose_name_begins_the_same_is_another(self) -> None:
        """A g6.xlarge has an L4; an L40S is none, though its name begins so."""
        for names, said in ((("NVIDIA L40S",), True), (("NVIDIA L4",), False), (("nvidia l4, 24 GB",), False)):
            one = Profile("c.json", "g6.xlarge", 1, names, 32, {1: exactly(1e8)})
            notes = recommend([one], AWS, Work(iterations=1)).notes
            assert any("but ran on" in note for note in notes) == said, names

    def test_ranks_on_a_cpu_say_nothing_of_the_instance_s_devices(self, tmp_path: Path) -> None:
        one = replace(ran("p3.8xlarge", 4, {1: 0.1, 2: 0.2}), device="cpu")
        assert any(
            "which has V100-SXM2-16GB, but its ranks used no device" in note
            for note in recommend([one], AWS, Work(iterations=1)).notes
        )
        other = recommend([replace(one, device="gpu")], AWS, Work(iterations=1))
        assert not any("used no device" in note for note in other.notes)
        for processors in ("2 cores", "96 vCPUs", "EPYC CPU"):
            (tmp_path / "desk.toml").write_text(
                f'version = 1\n[instance.desk]\ndevice = "{processors}"\ndevices_count = 4\n', encoding="utf-8"
            )
            desk = load_catalog([tmp_path / "desk.toml"])
            notes = recommend([replace(one, instance="desk")], desk, Work(iterations=1)).notes
            assert not any("used no device" in note for note in notes), processors

    @pytest.mark.parametrize(("seconds", "said"), [(0.2 * 1.03, "1.03x shorter"), (0.28, "1.4x shorter")])
    def test_a_small_factor_keeps_its_digits(self, seconds: float, said: str) -> None:
        one = ran("p3.16xlarge", 8, {1: 0.1, 2: 0.2, 5: seconds}, network_hosts_count=2, network_instance="p3.8xlarge")
        answer = recommend([one], AWS, Work(iterations=18_000), data="synthetic")
        sentences = " ".join(part for one in choices(answer) for part in one)
        assert f"p3.16xlarge costs the same as 2x p3.8xlarge but its steps are {said}" in sentences

    def test_steps_of_an_unknown_batch_among_others_are_reported(self) -> None:
        known, unknown = ran("p3.8xlarge", 4, {1: 0.1, 2: 0.2}), ran("p3.16xlarge", 8, {1: 0.1, 2: 0.2}, 0)
        for ones, said in (([known, unknown], True), ([known], False), ([unknown], False)):
            notes = recommend(ones, AWS, Work(iterations=10)).notes
            assert any("does not know its batch" in note for note in notes) == said


points = st.lists(st.tuples(st.integers(1, 4), st.one_of(st.none(), st.integers(0, 4))), min_size=1, max_size=9)


@given(points)
def test_the_front_is_what_nothing_beats(every: list[tuple[int, int | None]]) -> None:
    """With ties and without prices: marked if and only if no other is at least as good in both and better in one."""
    basis = recommend([ran("p3.8xlarge", 4, {1: 0.1, 2: 0.2})], AWS, Work(iterations=1)).candidates[0]
    made = [replace(basis, hours=exactly(h), cost=exactly(math.nan if c is None else c)) for h, c in every]
    for (hours, cost), one in zip(every, pareto_marked(made), strict=True):
        beaten = cost is None or any(
            c is not None and (h, c) != (hours, cost) and h <= hours and c <= cost for h, c in every
        )
        assert one.pareto == (not beaten)
