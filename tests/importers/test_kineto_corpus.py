"""Real traces of torch.profiler against what independent tools found in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trace_processor
from corpus import corpus, reference
from importers.read_back import load

import stashtrace
from stashtrace.exporters.registry import export
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

#: Results of independent tools -> the files that they are of.
FILES = {
    "hta_df_index": "one_rank_of_many/df_index_rank1_of_2.json.gz",
    "hta_nccl_meta": "one_rank_of_many/nccl_meta_rank0_of_2.json.gz",
    "hta_diff_control": "one_rank_of_many/diff_control_rank3_of_8.json.gz",
    "tl_mi300_resnet_ckpt": "one_rank_of_many/mi300_resnet_ckpt_rank0_of_8.json.gz",
    "hta_sampled_128": "sampled_128",
    "tb_r50_nw0_2021-06": "one_gpu/tb_r50_nw0.pt.trace.json.gz",
    "tb_r50_nw4_2021-06": "one_gpu/tb_r50_nw4.pt.trace.json.gz",
    "param_resnet": "one_gpu/param_resnet.json.gz",
    "tl_h100_qwen": "one_gpu/h100_qwen.json.gz",
    "tl_sglang_pd": "one_gpu/sglang_prefilldecode.json.gz",
    "hta_alexnet": "one_gpu/alexnet.json.gz",
    "hta_event_sync": "one_gpu/event_sync.json.gz",
}
#: Points of GPU idle, and nanoseconds of everything else: the references went through floating-point stamps.
IDLE_POINTS, ROUNDED_NS = 0.02, 50_000


@pytest.fixture(scope="module")
def dlrm() -> Trace:
    folder = corpus("kineto/dlrm8_v100")
    return load(*sorted(folder.glob("rank*.json.gz")))


def _compare(trace: Trace, found: dict[str, Any]) -> None:
    rows = {str(r["rank"]): r for r in stashtrace.analyze(trace, "breakdown").rows()}
    if len(found) == 1 == len(rows):
        rows = dict(zip(found, rows.values(), strict=True))
    assert set(rows) == set(found)
    for rank, expected in found.items():
        row = rows[rank]
        assert 100 * row["idle_ns"] / row["window_ns"] == pytest.approx(expected["idle_pct"], abs=IDLE_POINTS)
        for ours, theirs in (
            ("compute_ns", "comp_union_ns"),
            ("communication_ns", "comm_union_ns"),
            ("exposed_communication_ns", "exposed_comm_ns"),
            ("memcpy_ns", "mem_union_ns"),
        ):
            assert row[ours] == pytest.approx(expected[theirs], abs=ROUNDED_NS), (rank, ours)
        kernels = trace.kernels.take(trace.kernels["rank"] == row["rank"])
        assert len(kernels) == expected["n_device"]
        assert int((kernels["work_code"] == DeviceWork.COMMUNICATION).sum()) == expected["n_comm"]


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_plain_arithmetic(name: str) -> None:
    _compare(load(corpus(f"kineto/{FILES[name]}")), reference(f"own-{name}.json")["ranks"])


def test_agrees_on_eight_ranks(dlrm: Trace) -> None:
    _compare(dlrm, reference("own-dlrm8_v100.json")["ranks"])


@pytest.mark.parametrize("name", ["hta_df_index", "hta_diff_control", "tb_r50_nw0_2021-06", "param_resnet"])
def test_stalls_add_up(name: str) -> None:
    trace = load(corpus(f"kineto/{FILES[name]}"))
    steps, stalls = stashtrace.analyze(trace, "steps"), stashtrace.analyze(trace, "stalls", warmup=True)
    for row in steps.rows():
        own = (stalls["rank"] == row["rank"]) & (stalls["step"] == row["step"])
        assert int(stalls["stall_ns"][own].sum()) == row["end_ns"] - row["begin_ns"]
        assert set(stalls["method"][own].tolist()) == {"kernels"}


def test_steps_keep_the_numbers_of_the_file() -> None:
    steps = stashtrace.analyze(load(corpus(f"kineto/{FILES['hta_df_index']}")), "steps")
    assert steps["step"].tolist() == [2, 3, 4, 5, 6]


def test_late_rank_of_eight(dlrm: Trace) -> None:
    table = stashtrace.analyze(dlrm, "stragglers")
    assert table["last_count"].tolist() == [0, 0, 0, 0, 1, 2, 0, 5]
    collectives = stashtrace.analyze(dlrm, "collectives")
    assert set(collectives["sequence"].tolist()) == set(range(8))
    waited = {rank: int(collectives["wait_ns"][collectives["rank"] == rank].sum()) for rank in (1, 7)}
    assert waited[1] == pytest.approx(11_100_000, abs=100_000)
    assert waited[7] == pytest.approx(1_500_000, abs=100_000)
    steps, stalls = stashtrace.analyze(dlrm, "steps"), stashtrace.analyze(dlrm, "stalls")
    assert set(steps["step"].tolist()) == {10}
    for row in steps.rows():
        own = (stalls["rank"] == row["rank"]) & (stalls["step"] == 10)
        assert int(stalls["stall_ns"][own].sum()) == row["end_ns"] - row["begin_ns"]
    reported = " ".join(summary(dlrm).split())
    assert "for other ranks in all-to-all, 78 % of it for rank 7" in reported
    assert "how batches are made" in reported


def test_execution_traces_next_to_it_take_nothing_away() -> None:
    """Files that do not know how many ranks there are leave that to those that do."""
    trace = stashtrace.load(corpus("kineto/dlrm8_v100"))
    assert set(trace.ranks.tolist()) == set(range(8))
    assert set(stashtrace.analyze(trace, "transfer_certainty")["reason"].tolist()) == {"certain"}


def test_input_stall_and_its_cure() -> None:
    """The published pair: 59.3 ms of loader a step with no worker, 1.2 ms with four."""
    waits = []
    for name in ("tb_r50_nw0_2021-06", "tb_r50_nw4_2021-06"):
        totals = stashtrace.analyze(load(corpus(f"kineto/{FILES[name]}")), "stalls", by="rank")
        row = next(r for r in totals.rows() if r["kind"] == "prep")
        assert (row["low_ns"], row["high_ns"]) == (0, row["stall_ns"])
        waits.append(row["stall_ns"] / row["steps_count"])
    assert waits[0] == pytest.approx(59_300_000, abs=500_000)
    assert waits[1] == pytest.approx(1_200_000, abs=100_000)


@pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")
def test_merged_time_line_opens(dlrm: Trace, tmp_path: Path) -> None:
    path = tmp_path / "merged.pftrace.gz"
    export(dlrm, "perfetto", str(path))
    viewer = trace_processor.TraceProcessor.of(path)
    assert viewer.errors() == []
    names = [row[0] for row in viewer.rows("select name from process where name is not null")]
    assert sum(name.startswith("rank") for name in names) == 8
    shown = viewer.rows("select count(*) from slice where name glob '*ncclKernel_SendRecv*'")
    assert shown[0][0] >= 40
