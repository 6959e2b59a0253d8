"""The analyses of work on devices against what independent tools found in real traces.

Where a tool's definition differs, the option or the arithmetic that makes the two equal stands in the test.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from corpus import corpus, reference

import stashtrace
from stashtrace.analysis.devices.breakdown import device_columns
from stashtrace.analysis.devices.work import Windows, device_rows
from stashtrace.analysis.registry import analyze
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

US = 1_000
#: Points of a per cent to which idle time must agree, and what the references' float time stamps may be off.
POINTS, ROUNDING_NS = 0.02, 40 * US

ONE_GPU, ONE_RANK = "kineto/one_gpu", "kineto/one_rank_of_many"
FILES = {
    "dlrm8_v100": "kineto/dlrm8_v100",
    "hta_sampled_128": "kineto/sampled_128",
    "hta_df_index": f"{ONE_RANK}/df_index_rank1_of_2.json.gz",
    "hta_nccl_meta": f"{ONE_RANK}/nccl_meta_rank0_of_2.json.gz",
    "hta_diff_control": f"{ONE_RANK}/diff_control_rank3_of_8.json.gz",
    "tl_mi300_resnet_ckpt": f"{ONE_RANK}/mi300_resnet_ckpt_rank0_of_8.json.gz",
    "tb_r50_nw0_2021-06": f"{ONE_GPU}/tb_r50_nw0.pt.trace.json.gz",
    "tb_r50_nw4_2021-06": f"{ONE_GPU}/tb_r50_nw4.pt.trace.json.gz",
    "param_resnet": f"{ONE_GPU}/param_resnet.json.gz",
    "tl_h100_qwen": f"{ONE_GPU}/h100_qwen.json.gz",
    "tl_sglang_pd": f"{ONE_GPU}/sglang_prefilldecode.json.gz",
    "hta_alexnet": f"{ONE_GPU}/alexnet.json.gz",
    "hta_event_sync": f"{ONE_GPU}/event_sync.json.gz",
}
#: HTA cuts nanoseconds, which moves its idle time by up to a point: these have whole microseconds.
MICROSECONDS = [
    "dlrm8_v100",
    "hta_sampled_128",
    "hta_df_index",
    "hta_diff_control",
    "tb_r50_nw0_2021-06",
    "tb_r50_nw4_2021-06",
    "param_resnet",
    "hta_alexnet",
    "hta_event_sync",
]
#: HTA takes markers of synchronisation for work on the device.
MARKED = ["hta_alexnet", "hta_event_sync"]
#: our column: that of the reference
COLUMNS = {
    "window_ns": "window_ns",
    "busy_ns": "busy_union_ns",
    "idle_ns": "idle_ns",
    "compute_ns": "comp_union_ns",
    "communication_ns": "comm_union_ns",
    "exposed_communication_ns": "exposed_comm_ns",
    "memcpy_ns": "mem_union_ns",
    "input_wait_ns": "dataloader_ns",
    "exposed_input_wait_ns": "idle_in_dataloader_ns",
}
STEP_COLUMNS = {
    "compute_ns": "comp_ns",
    "communication_ns": "comm_ns",
    "exposed_communication_ns": "exposed_comm_ns",
    "input_wait_ns": "dataloader_ns",
    "exposed_input_wait_ns": "idle_in_dataloader_ns",
}


@cache
def loaded(name: str) -> Trace:
    path = corpus(FILES[name])
    files = [p for p in sorted(path.glob("*.json.gz")) if not p.name.startswith("et_")] if path.is_dir() else [path]
    return stashtrace.load([str(p) for p in files])


def own_ranks(name: str) -> dict[int, dict]:
    return {int(rank): values for rank, values in reference(f"own-{name}.json")["ranks"].items()}


def percent(row: dict) -> float:
    return 100 * row["idle_ns"] / row["window_ns"]


def agree(row: dict, found: dict) -> None:
    for ours, theirs in COLUMNS.items():
        if theirs in found:
            assert row[ours] == pytest.approx(found[theirs], abs=ROUNDING_NS), ours
    assert row["work_count"] == found["n_device"]
    assert percent(row) == pytest.approx(found["idle_pct"], abs=POINTS)
    if found.get("comm_comp_overlap_pct") is not None:
        assert 100 * row["overlap_ratio"] == pytest.approx(found["comm_comp_overlap_pct"], abs=POINTS)


@pytest.mark.parametrize("name", FILES)
def test_breakdown_is_that_of_plain_arithmetic(name: str) -> None:
    rows = {row["rank"]: row for row in analyze(loaded(name), "breakdown").rows()}
    found = own_ranks(name)
    assert set(rows) == set(found)
    for rank, values in found.items():
        agree(rows[rank], values)
        assert rows[rank]["busy_ns"] + rows[rank]["idle_ns"] == rows[rank]["window_ns"]


@pytest.mark.parametrize("name", FILES)
def test_without_orphans_too(name: str) -> None:
    rows = {row["rank"]: row for row in analyze(loaded(name), "breakdown", orphans="drop").rows()}
    for rank, values in own_ranks(name).items():
        # Without a separate figure there was no orphan.
        agree(rows[rank], values.get("launched_only", values))
        assert rows[rank]["orphans_count"] == 0


@pytest.mark.parametrize("name", FILES)
def test_each_step_of_the_host(name: str) -> None:
    """The reference cuts by the profiler's annotations on the host, so the same windows are asked for here."""
    trace = loaded(name)
    origins = {rank: first_work(trace, rank) - values["window_start_ns"] for rank, values in own_ranks(name).items()}
    for device in device_rows(trace):
        found = own_ranks(name)[device.rank]["steps"]
        begin = np.array([step["start_ns"] + origins[device.rank] for step in found], dtype=np.int64)
        end = begin + np.array([step["dur_ns"] for step in found], dtype=np.int64)
        windows = Windows(np.arange(len(found)), begin, end)
        columns = device_columns(device, windows, "step")
        for row, step in enumerate(found):
            off = columns["idle_ns"][row] - step["gpu_idle_ns"]
            assert 100 * off / step["dur_ns"] == pytest.approx(0, abs=POINTS)
            for ours, theirs in STEP_COLUMNS.items():
                assert columns[ours][row] == pytest.approx(step[theirs], abs=ROUNDING_NS), (ours, row)


def first_work(trace: Trace, rank: int) -> int:
    kernels = trace.kernels
    return int(kernels["begin_ns"][(kernels["rank"] == rank) & (kernels["begin_ns"] >= 0)].min())


def hta(name: str, mode: str, what: str) -> list[dict]:
    found = reference(f"hta-{name}.json")[mode].get(what)
    if not isinstance(found, list) or not found:
        pytest.skip(f"HTA has no {what} of {name}")
    return found


@pytest.mark.parametrize("mode", ["default", "include_last_step"])
@pytest.mark.parametrize("name", [name for name in MICROSECONDS if name not in MARKED])
def test_breakdown_is_that_of_hta(name: str, mode: str) -> None:
    """HTA drops orphans and, by default, the last step; with a single step, or none, it drops nothing."""
    trace = loaded(name)
    several = len(reference(f"hta-{name}.json")["include_last_step"]["profiler_steps"]) > 1
    table = analyze(
        trace,
        "breakdown",
        orphans="drop" if several else "keep",
        last_step="drop" if several and mode == "default" else "keep",
    )
    rows = {row["rank"]: row for row in table.rows()}
    for found in hta(name, mode, "temporal_breakdown"):
        row = rows[found["rank"]]
        assert percent(row) == pytest.approx(found["idle_time_pctg"], abs=POINTS)
        for ours, theirs in (("window_ns", "kernel_time(us)"), ("compute_ns", "compute_time(us)")):
            assert row[ours] == found[theirs] * US
    for found in hta(name, mode, "comm_comp_overlap"):
        if found["comp_comm_overlap_pctg"] is not None:
            ratio = rows[found["rank"]]["overlap_ratio"]
            assert 100 * ratio == pytest.approx(found["comp_comm_overlap_pctg"], abs=POINTS)


@pytest.mark.parametrize("name", ["tb_r50_nw0_2021-06", "tb_r50_nw4_2021-06"])
def test_idle_by_cause_is_that_of_hta_on_one_stream(name: str) -> None:
    """HTA's causes are those of streams; with one stream that is the device. What it calls other was queued, too."""
    trace = loaded(name)
    found: dict[str, float] = {}
    for row in hta(name, "include_last_step", "idle_time_breakdown"):
        found[row["idle_category"]] = found.get(row["idle_category"], 0) + row["idle_time"] * US
    causes = {row["cause"]: row["idle_ns"] for row in analyze(trace, "idle").rows()}
    queued = found["kernel_wait"] + found.get("other", 0)
    assert causes["kernel_wait"] == pytest.approx(queued, rel=0.005)
    late = causes["input"] + causes["sync"] + causes["host"] + causes["launch"]
    assert late == pytest.approx(found["host_wait"], rel=0.001)


def test_the_stalled_loader_and_its_cure() -> None:
    """Published for these two recordings: 59.3 ms of DataLoader a step become 1.2 ms with four workers."""
    slow, cured = (cause_of(loaded(f"tb_r50_nw{n}_2021-06"), "input") for n in (0, 4))
    assert slow / 6 == pytest.approx(48e6, rel=0.05)  # without the wait before the first kernel
    assert cured / 6 < 1e6
    table = stashtrace_diff("tb_r50_nw0_2021-06", "tb_r50_nw4_2021-06")
    assert table["name"][0] == "all"
    assert abs(int(table["change_ns"][0])) < 0.02 * int(table["before_ns"][0])  # the same work


@pytest.mark.parametrize("name", ["tb_r50_nw0_2021-06", "tb_r50_nw4_2021-06"])
def test_waits_for_batches_are_those_of_torch_tb_profiler(name: str) -> None:
    """It gives the loader what neither the device nor a runtime call covers; so does the budget."""
    found = reference(f"tbplugin-{name}.json")["result"]["workers"]["worker0"]["avg_us"]["DataLoader"]
    table = analyze(loaded(name), "stalls")
    waits = np.isin(table["kind"], ("fetch", "prep", "handoff")) & (table["step"] >= 0)
    assert int(table["stall_ns"][waits].sum()) / 6 == pytest.approx(found * US, abs=US)


def cause_of(trace: Trace, cause: str) -> int:
    return sum(row["idle_ns"] for row in analyze(trace, "idle").rows() if row["cause"] == cause)


def stashtrace_diff(before: str, after: str) -> Table:
    from stashtrace.analysis.devices.kernels import kernel_diff

    return kernel_diff(loaded(before), loaded(after))


def test_a_full_launch_queue_is_that_of_hta() -> None:
    (found,) = hta("tl_mi300_resnet_ckpt", "include_last_step", "queue_full")
    rows = {row["stream_code"]: row for row in analyze(loaded("tl_mi300_resnet_ckpt"), "launches").rows()}
    full = max(row["full_queue_ns"] for row in rows.values())
    assert full == pytest.approx(found["duration_at_max_queue_length"] * US, abs=2 * US)


@pytest.mark.parametrize("name", [n for n in MICROSECONDS if n != "hta_event_sync"])
def test_kernels_add_up(name: str) -> None:
    trace = loaded(name)
    kernels, table = trace.kernels, analyze(trace, "kernels", by="rank")
    assert int(table["calls_count"].sum()) == len(kernels)
    assert int(table["total_ns"].sum()) == int((kernels["end_ns"] - kernels["begin_ns"]).sum())
    for rank in trace.ranks.tolist():
        assert float(table["share_ratio"][table["rank"] == rank].sum()) == pytest.approx(1)


def test_bandwidth_is_that_of_tracelens() -> None:
    """TraceLens writes MB for 2**20 bytes; its mean of rates is ours where all sizes of a class are the same."""
    found = reference("tracelens-hta_nccl_meta.json")["result"]["build_df_summary_nccl_implicit_sync_cat"]
    rows = [row for row in analyze(loaded("hta_nccl_meta"), "bandwidth").rows() if row["op"] == "all_reduce"]
    assert sum(row["calls_count"] for row in rows) == sum(each["count"] for each in found)
    for row in rows:
        least = row["size_class_bytes"] / 2**20
        same = [each for each in found if least <= each["Full msg size (MB)"] < 2 * least]
        total = sum(each["count"] * each["Full msg size (MB)"] * 2**20 for each in same)
        taken = sum(each["count"] * each["comm_latency_mean"] * 1e-6 for each in same)
        assert row["total_bytes"] == pytest.approx(total, rel=1e-6)
        assert row["algorithm_bytes_per_s"] == pytest.approx(total / taken, rel=1e-5)
        assert row["bus_bytes_per_s"] == pytest.approx(total / taken, rel=1e-5)  # two ranks: 2 (n - 1) / n = 1


def test_copies_from_the_host_are_those_of_plain_arithmetic() -> None:
    for name in ("param_resnet", "hta_alexnet", "tb_r50_nw0_2021-06"):
        rows = list(analyze(loaded(name), "copies").rows())
        down = sum(row["busy_ns"] for row in rows if row["direction"] == "host_to_device")
        (found,) = own_ranks(name).values()
        assert down == pytest.approx(found["h2d_union_ns"], abs=ROUNDING_NS)
        exposed = sum(row["exposed_ns"] for row in rows if row["direction"] == "host_to_device")
        assert exposed == pytest.approx(found["h2d_exposed_ns"], abs=ROUNDING_NS)


NSYS = {
    "h100_2gpu_1s.sqlite": "nsys-h100_2gpu_1s.json",
    "mock.sqlite": "nsys-mock.json",
    "saxpy-mpi-cuda_perlmutter0.sqlite": "nsys-saxpy-mpi-cuda_nsys_perlmutter0.json",
}


@pytest.mark.parametrize("name", NSYS)
def test_breakdown_of_nsys_exports(name: str) -> None:
    trace = stashtrace.load(str(corpus(f"nsys/{name}")))
    rows = {str(row["device_index"]): row for row in analyze(trace, "breakdown").rows()}
    found = reference(NSYS[name])["devices"]
    assert set(rows) == set(found)
    for device, values in found.items():
        for ours, theirs in COLUMNS.items():
            if theirs in values:
                assert rows[device][ours] == values[theirs], (device, ours)
    copied = sum(row["total_bytes"] for row in analyze(trace, "copies").rows() if row["direction"] == "host_to_device")
    assert copied == sum(values["h2d_bytes"] for values in found.values())


def test_the_corpus_is_where_the_tests_look() -> None:
    assert all(isinstance(corpus(path), Path) for path in FILES.values())
