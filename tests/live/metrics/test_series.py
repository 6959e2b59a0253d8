"""Samples of a state with known numbers, as Prometheus' parsers read them."""

from __future__ import annotations

import numpy as np
import pytest
from builders import TraceBuilder
from live_states import ZERO_NS, S, made_up_state, made_up_totals

from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS
from stashtrace.live.metrics.outlets import NewestFamilies
from stashtrace.live.metrics.series import SERIES, families_of
from stashtrace.live.newest import gpus_of
from stashtrace.live.state import LiveState, job_of, pod_of
from stashtrace.live.table import LIVE_STEPS, GrowingSum, LiveTotals
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.schema.table import Table

prometheus_client = pytest.importorskip("prometheus_client")
GPU = "GPU-11111111-2222-3333-4444-555555555555"


def read_samples(state: LiveState, form: str = "text") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of a state, written in a format and read back by prometheus_client's parser of it."""
    newest = NewestFamilies()
    newest.families = families_of(state)
    if form == "text":
        from prometheus_client.parser import text_string_to_metric_families as parse

        text = prometheus_client.generate_latest(newest.registry()).decode()
    else:
        from prometheus_client.openmetrics.exposition import generate_latest
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

        text = generate_latest(newest.registry()).decode()
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in parse(text) for s in family.samples}


@pytest.mark.parametrize("form", ["text", "openmetrics"])
def test_known_numbers(form: str) -> None:
    samples = read_samples(made_up_state(), form)

    def value(name: str, **labels: str) -> float:
        return samples[f"stashtrace_{name}", tuple(sorted(labels.items()))]

    assert value("stall_seconds_total", rank="0", kind="straggler") == 0.5
    assert value("stall_seconds_total", rank="0", kind="compute") == 1.5
    assert value("stall_seconds_total", rank="1", kind="compute") == 1.8
    assert value("steps_total", rank="0") == 4
    assert value("caused_wait_seconds_total", rank="1") == 0.75
    assert value("caused_wait_seconds_total", rank="0") == 0
    assert value("last_step_timestamp_seconds", rank="0") == 1_700_000_009
    assert value("last_look_timestamp_seconds") == made_up_state().updated_realtime_ns / S
    assert (value("stuck", rank="0"), value("stuck", rank="1")) == (0, 1)
    assert value("lost_records_total") == 3
    assert value("own_cpu_seconds_total", part="follower") == 2.5
    assert value("own_cpu_seconds_total", part="recorder") == 0.04
    assert value("rank_info", rank="1", host="node07", gpu_uuid=GPU, pod="train-0", job="4711") == 1
    assert value("rank_info", rank="0", host="node07", gpu_uuid="", pod="train-0", job="4711") == 1


def test_buckets_hold_all_shorter_steps() -> None:
    samples = read_samples(made_up_state())
    buckets = {
        dict(labels)["le"]: count
        for (name, labels), count in samples.items()
        if name == "stashtrace_step_seconds_bucket" and dict(labels)["rank"] == "0"
    }
    assert buckets["0.01"] == 1  # 8 ms
    assert buckets["0.05"] == 1
    assert buckets["0.1"] == 2  # and 92 ms
    assert buckets["0.5"] == 2
    assert buckets["1.0"] == buckets["60.0"] == buckets["+Inf"] == 4  # and 0.9 s and 1 s
    assert samples["stashtrace_step_seconds_sum", (("rank", "0"),)] == 2
    assert samples["stashtrace_step_seconds_count", (("rank", "0"),)] == 4


def test_kinds_of_a_rank_add_up_to_its_steps() -> None:
    samples = read_samples(made_up_state())
    spent = {
        dict(labels)["kind"]: value
        for (name, labels), value in samples.items()
        if name == "stashtrace_stall_seconds_total" and dict(labels)["rank"] == "1"
    }
    assert set(spent) == set(KIND_NAMES)
    assert sum(spent.values()) == samples["stashtrace_step_seconds_sum", (("rank", "1"),)]


def test_labels_take_few_values() -> None:
    """What differs from job to job multiplies the series of a site: it stands on the info series alone."""
    for one in SERIES:
        if one.name != "stashtrace_rank":
            assert set(one.labels) <= {"rank", "kind", "part"}, one.name
    names = {name for name, _ in read_samples(made_up_state())}
    assert {one.full_name for one in SERIES if one.type != "histogram"} <= names


def test_a_rank_without_a_step_is_there() -> None:
    """A job may be stuck in its first step: no sums then, but the rank that it waits for."""
    state = made_up_state()
    state.ranks, state.gpus = {}, {}
    samples = read_samples(state)
    assert samples["stashtrace_stuck", (("rank", "1"),)] == 1
    assert not [name for name, _ in samples if name.startswith(("stashtrace_steps", "stashtrace_last_step"))]


def test_a_job_that_is_stuck_on_an_unknown_rank_sets_all() -> None:
    state = made_up_state()
    state.stuck_ranks = []
    assert {read_samples(state)["stashtrace_stuck", (("rank", rank),)] for rank in "01"} == {1}
    state.stuck = ""
    assert {read_samples(state)["stashtrace_stuck", (("rank", rank),)] for rank in "01"} == {0}


def test_sums_of_an_ended_job_stay_and_what_is_true_now_goes() -> None:
    state = made_up_state()
    state.ended = True
    names = {name for name, _ in read_samples(state)}
    assert {"stashtrace_steps_total", "stashtrace_stall_seconds_total", "stashtrace_step_seconds_sum"} <= names
    running = {"stuck", "last_step_timestamp_seconds", "last_look_timestamp_seconds", "rank_info"}
    assert not names & {f"stashtrace_{name}" for name in running}


def test_an_end_that_is_not_known_is_left_out() -> None:
    totals = made_up_totals()
    totals.ranks[0].last_end_ns = -1
    state = made_up_state()
    state.take_totals(totals, ZERO_NS)
    assert ("stashtrace_last_step_timestamp_seconds", (("rank", "0"),)) not in read_samples(state)
    assert read_samples(state)["stashtrace_last_step_timestamp_seconds", (("rank", "1"),)] == (ZERO_NS + 9 * S) / S


def test_sums_never_go_down_when_processes_are_let_go() -> None:
    lost = GrowingSum()
    assert lost.update({"a": 5}) == 5
    assert lost.update({"a": 7, "b": 2}) == 9
    assert lost.update({"b": 3}) == 10  # the rows of a were let go
    assert lost.update({"b": 1}) == 10  # fewer rows are in memory, no fewer were lost
    assert lost.update({"c": 4}) == 14
    assert lost.update({}) == 14


def test_job_and_pod() -> None:
    assert job_of({"SLURM_JOB_ID": "4711"}, {"run_id": "ab"}) == "4711"
    assert job_of({}, {"run_id": "ab", "job": "nightly"}) == "nightly"
    assert job_of({}, {"run_id": "ab"}) == "ab"
    assert pod_of({"HOSTNAME": "node07"}) == ""
    assert pod_of({"HOSTNAME": "train-0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "train-0"
    assert pod_of({"HOSTNAME": "x", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "train-0"}) == "train-0"


def test_counters_go_on_when_the_ranks_of_an_elastic_job_start_again() -> None:
    """The steps of a new start begin with 0 again; what was counted before stays."""
    totals, sums = LiveTotals(), []
    for start, steps_count in ((0, 3), (1, 2)):
        for step in range(steps_count):
            columns = {name: np.zeros(1, dtype=np.int64) for name in LIVE_STEPS.names}
            columns |= {"step": np.array([step]), "start": np.array([start]), "end_ns": np.array([2 * S])}
            columns |= {"step_kind": np.array(["train"]), KIND_COLUMNS["compute"]: np.array([2 * S])}
            totals.add(Table(LIVE_STEPS, columns))
            state = LiveState("node07", run_id="ab")
            state.take_totals(totals, ZERO_NS)
            samples = read_samples(state)
            sums.append((samples["stashtrace_steps_total", (("rank", "0"),)], sum_of(samples, "compute")))
    assert sums == [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]


def sum_of(samples: dict[tuple[str, tuple[tuple[str, str], ...]], float], kind: str) -> float:
    return samples["stashtrace_stall_seconds_total", (("kind", kind), ("rank", "0"))]


def test_gpus_of_ranks() -> None:
    build = TraceBuilder()
    build.rank(0).gpu(0, uuid="GPU-a")
    build.rank(1).gpu(1, uuid="GPU-c")
    build.rank(1).gpu(0, uuid="GPU-b")
    build.rank(2)
    assert gpus_of(build.trace()) == {"0": "GPU-a", "1": "GPU-b,GPU-c"}
