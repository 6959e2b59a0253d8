"""Steps of counts that nobody ran: the ring, the network, the loaders; and published runs as the judge of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from published_runs import COUNTS, MODELS, RUNS, characterization

from stashtrace.calibration.fit_link import bytes_factor
from stashtrace.files.checked_files import CheckedFile
from stashtrace.lab.number_intervals import Interval, exactly
from stashtrace.lab.recommend import profile as profiles
from stashtrace.lab.recommend.instance_catalog import Catalog, Instance
from stashtrace.lab.recommend.profile import Profile
from stashtrace.lab.recommend.scaling import (
    Exposed,
    Prediction,
    Ring,
    Target,
    UnpredictableError,
    fit_ring,
    in_host_ring,
    network_ring,
    predict,
)

PUBLISHED = CheckedFile("published", "characterization", "characterization", "")
SMALL = Instance("small", "X", 1, interconnect="none", vcpus_count=8, network_bits_per_s=10**10)
HALF = Instance("half", "X", 4, interconnect="nvlink", vcpus_count=32, network_bits_per_s=10**10)
WHOLE = Instance("whole", "X", 8, interconnect="nvlink", vcpus_count=64, network_bits_per_s=25 * 10**9)
WIRED = Instance("wired", "X", 8, interconnect="pcie", vcpus_count=64)
CATALOG_OF_X = Catalog({one.name: one for one in (SMALL, HALF, WHOLE, WIRED)})


def measured(instance: str, devices: int, steps: Mapping[int, float], **more: object) -> Profile:
    """A characterization without doubt about its numbers."""
    facts = {"network_hosts_count": 2, "network_devices_count": devices, "network_instance": instance} | more
    return Profile("c.json", instance, devices, (), 32, {k: exactly(v) for k, v in steps.items()}, **facts)  # type: ignore[arg-type]


def step(profile: Profile, instance: Instance, hosts: int = 1, devices: int | None = None) -> Prediction:
    found = predict(profile, Target(instance, hosts, devices or instance.devices_count), CATALOG_OF_X)
    assert isinstance(found, Prediction), found
    return found


class TestRing:
    def test_factor_of_the_bytes(self) -> None:
        assert [bytes_factor(n) for n in (1, 2, 4, 8)] == [0.0, 1.0, 1.5, 1.75]

    def test_one_count_is_taken_for_bytes_up_to_all_latency(self) -> None:
        eight = Ring(Exposed(4, exactly(75.0))).at(8)
        assert eight.value == pytest.approx(75 * 1.75 / 1.5)
        assert eight.high == pytest.approx(1.1 * 75 * 7 / 3)
        assert eight.low == pytest.approx(0.9 * eight.value)

    @pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
    def test_two_counts_separate_latency_from_bytes(self, share: float) -> None:
        def time(n: int) -> float:
            return share * (n - 1) / 3 + (1 - share) * bytes_factor(n) / 1.5

        seen = [Exposed(n, exactly(time(n))) for n in (4, 8)]
        ring = fit_ring(seen, seen[0])
        assert ring.latency_share == pytest.approx(share, abs=1e-9)
        assert ring.at(32).value == pytest.approx(time(32))
        assert ring.at(32).high == pytest.approx(1.1 * time(32))

    def test_doubt_about_the_counts_is_doubt_about_the_shares(self) -> None:
        seen = [Exposed(4, Interval(1.0, 0.8, 1.2)), Exposed(8, Interval(1.6, 1.3, 1.9))]
        ring = fit_ring(seen, seen[0])
        assert ring.low_share < ring.latency_share < ring.high_share

    def test_alpha_and_beta(self) -> None:
        """messages * 2 (N - 1) * alpha + bytes * 2 (N - 1) / N * beta, put in and got back."""
        alpha, beta, messages, size = 5_000.0, 0.1, 10, 46_800_000
        seen = [Exposed(n, exactly(messages * 2 * (n - 1) * alpha + size * bytes_factor(n) * beta)) for n in (2, 8)]
        ring = fit_ring(seen, seen[1])
        exposed_ns = ring.base.time_ns.value
        assert ring.latency_share * exposed_ns == pytest.approx(messages * 2 * 7 * alpha)
        assert (1 - ring.latency_share) * exposed_ns == pytest.approx(size * bytes_factor(8) * beta)

    def test_noise_about_nothing_is_nothing(self) -> None:
        ring = fit_ring([], Exposed(4, Interval(-3.0, -9.0, 4.0)))
        assert ring.at(8).value == 0.0
        assert ring.at(8).low == 0.0
        assert ring.at(8).high > 4.0

    def test_one_device_needs_no_link(self) -> None:
        assert Ring(Exposed(4, exactly(75.0))).at(1) == exactly(0.0)

    def test_shrinking_uncovers_nothing(self) -> None:
        half = Ring(Exposed(8, exactly(70.0)), hidden_ns=100.0).at(4)
        assert half.value == pytest.approx(70 * 1.5 / 1.75)
        assert half.low <= 70 * 3 / 7
        assert half.high >= half.value


class TestInsideOneHost:
    profile = measured("half", 4, {1: 100, 2: 130})

    def test_as_it_ran(self) -> None:
        found = step(self.profile, HALF)
        assert (found.synthetic.value, found.ran) == (130, True)
        assert found.parts_ns == {"compute": 100, "interconnect": 30}

    def test_one_device_computes_alone(self) -> None:
        assert step(self.profile, SMALL).synthetic == exactly(100)

    def test_twice_the_devices(self) -> None:
        found = step(self.profile, WHOLE)
        assert found.synthetic.value == pytest.approx(100 + 30 * 1.75 / 1.5)
        assert not found.ran
        assert found.synthetic.high == pytest.approx(100 + 1.1 * 30 * 7 / 3)

    def test_other_wires_cannot_be_distinguished(self) -> None:
        with pytest.raises(UnpredictableError, match=r"^its devices are joined by pcie, those of half by nvlink$"):
            predict(self.profile, Target(WIRED, 1, 8), CATALOG_OF_X)

    def test_missing_configurations_are_named(self) -> None:
        with pytest.raises(UnpredictableError, match=r"configuration 1 of c\.json"):
            predict(measured("half", 4, {2: 130}), Target(WHOLE, 1, 8), CATALOG_OF_X)
        with pytest.raises(UnpredictableError, match="configuration 2 "):
            predict(measured("small", 1, {1: 100}), Target(HALF, 1, 4), CATALOG_OF_X)
        with pytest.raises(UnpredictableError, match="configuration 5 "):
            predict(self.profile, Target(HALF, 2, 4), CATALOG_OF_X)

    def test_one_run_each_gives_no_interval(self) -> None:
        steps = {1: Interval(100.0), 2: Interval(130.0)}
        found = step(Profile("c.json", "half", 4, (), 32, steps), WHOLE)
        assert found.synthetic.value == pytest.approx(135)
        assert not found.synthetic.known

    def test_a_second_size_narrows_the_interval(self) -> None:
        other = measured("whole", 8, {1: 100, 2: 135})
        both = in_host_ring(self.profile, CATALOG_OF_X, [other])
        alone = in_host_ring(self.profile, CATALOG_OF_X)
        assert both.counts == (4, 8)
        assert both.high_share < alone.high_share


class TestBetweenHosts:
    profile = measured("half", 4, {1: 100, 2: 130, 5: 300}, network_devices_count=8)

    def test_as_it_ran(self) -> None:
        found = step(self.profile, HALF, 2)
        assert (found.synthetic.value, found.ran) == (300, True)
        assert found.parts_ns["compute"] == 100
        assert found.parts_ns["interconnect"] == pytest.approx(35)
        assert sum(found.parts_ns.values()) == pytest.approx(300)

    def test_more_hosts(self) -> None:
        found = step(self.profile, HALF, 4)
        assert found.synthetic.value == pytest.approx(100 + 200 * (15 / 16) / (7 / 8))
        assert not found.ran

    def test_a_faster_network_moves_bytes_faster_but_not_below_the_links_inside(self) -> None:
        assert step(self.profile, WHOLE, 2).synthetic.value == pytest.approx(100 + 200 * (15 / 16) / (7 / 8) * 10 / 25)
        fast = Instance("fast", "X", 4, interconnect="nvlink", vcpus_count=32, network_bits_per_s=10**13)
        assert step(self.profile, fast, 2).synthetic.value == pytest.approx(135)

    def test_an_emulated_network_measures_nothing(self) -> None:
        emulated = measured("half", 4, {1: 100, 2: 130, 5: 300}, network_emulated=True, network_bits_per_s=10**10)
        found = step(emulated, HALF, 2)
        assert (found.ran, found.emulated) == (False, True)

    def test_unknown_rates_are_said(self) -> None:
        found = step(self.profile, WIRED, 2)
        assert any("no rate known" in note for note in found.notes)
        assert network_ring(measured("half", 4, {1: 100}), CATALOG_OF_X) is None


class TestLoaders:
    def test_as_many_cpus_for_each_device_lag_by_the_same_amount(self) -> None:
        warm = step(measured("half", 4, {1: 100, 2: 130, 4: 260}), WHOLE).warm
        assert warm.value == pytest.approx(260)

    def test_half_as_many_cpus_double_the_lag(self) -> None:
        few = Instance("few", "X", 4, interconnect="nvlink", vcpus_count=16)
        warm = step(measured("half", 4, {1: 100, 2: 130, 4: 260}), few).warm
        assert warm.value == pytest.approx(520)
        assert warm.low <= 130 + 2 * 130 <= warm.high, "or what is lost is a separate cost"

    def test_storage_is_shared_by_the_devices_of_a_host(self) -> None:
        cold = step(measured("half", 4, {1: 100, 2: 130, 3: 400, 4: 130}), WHOLE).cold
        assert cold.value == pytest.approx(800)

    def test_unknown_cpus_leave_no_interval(self) -> None:
        dark = Instance("dark", "X", 4, interconnect="nvlink")
        found = step(measured("half", 4, {1: 100, 2: 130, 4: 260}), dark)
        assert not found.warm.known
        assert any("vCPUs" in note for note in found.notes)

    def test_noise_is_no_loss_but_bounds_the_pace(self) -> None:
        steps = {1: exactly(100), 2: Interval(130, 120, 140), 4: Interval(132, 121, 143)}
        few = Instance("few", "X", 4, interconnect="nvlink", vcpus_count=16)
        warm = step(Profile("c.json", "half", 4, (), 32, steps), few).warm
        assert warm.value == 130
        assert warm.high == pytest.approx(286)


class TestPublishedRuns:
    """Steps with 16 and 32 GPUs, predicted from those with 1, 4 and 8; the table of docs/guides/recommend.md."""

    SLOW = Instance("node4", "V100-PCIE-32GB", 4, interconnect="pcie", network_bits_per_s=10 * 10**9)
    FAST = Instance("node4-100g", "V100-PCIE-32GB", 4, interconnect="pcie", network_bits_per_s=100 * 10**9)

    def off(self, case: tuple[str, str, str], hosts: int, network: str = "") -> tuple[float, bool]:
        """(error of the prediction, whether the interval holds the truth); ``network``: predict that one instead."""
        model, own, method = case
        home = self.SLOW if own == "10GbE" else replace(self.FAST, name="node4")
        target = self.FAST if network == "100GbIB" else home
        one = profiles._profile(PUBLISHED, characterization(*case), "")
        found = predict(one, Target(target, hosts, 4), Catalog({home.name: home, target.name: target}))
        assert isinstance(found, Prediction)
        rate = RUNS[model, network or own, method][COUNTS.index(4 * hosts)][0]
        true = 4 * hosts * MODELS[model][0] / rate * 1e9
        return found.synthetic.value / true - 1, found.synthetic.low <= true <= found.synthetic.high

    @pytest.mark.parametrize(("hosts", "median", "largest"), [(4, 0.04, 0.12), (8, 0.05, 0.29)])
    def test_more_hosts(self, hosts: int, median: float, largest: float) -> None:
        found = [self.off(case, hosts) for case in RUNS]
        errors = np.abs([error for error, _ in found])
        assert np.median(errors) < median
        assert errors.max() < largest
        assert all(inside for _, inside in found)

    @pytest.mark.parametrize(("hosts", "largest"), [(2, 0.06), (4, 0.08), (8, 0.14)])
    def test_a_network_ten_times_as_fast(self, hosts: int, largest: float) -> None:
        """Predicted from the runs over 10GbE, held against those over InfiniBand."""
        found = [self.off(case, hosts, "100GbIB") for case in RUNS if case[1] == "10GbE"]
        assert len(found) == 9
        assert max(abs(error) for error, _ in found) < largest
        assert all(inside for _, inside in found)
