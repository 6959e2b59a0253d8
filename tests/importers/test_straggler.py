"""StragglerAnalysis traces: a pipeline by hand, and the published jobs against what their authors found."""

from __future__ import annotations

import gzip
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus import corpus, reference
from importers.read_back import load

import stashtrace
from stashtrace.errors import ImporterError
from stashtrace.replay.causes import summary
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

SECOND = 1_000_000_000


def write(path: Path, rows: list[tuple[int, int, str, float, float, int]], meta: str = "", step: int = 16) -> Path:
    """(dp_rank, stage, optype, start, end, seq_id) of two pipelines of two stages, rank = 4 * (2 * stage + dp)."""
    columns: dict[str, Any] = {
        "dp_rank": pa.array([r[0] for r in rows], pa.int8()),
        "stage": pa.array([r[1] for r in rows], pa.int8()),
        "rank": pa.array([4 * (2 * r[1] + r[0]) for r in rows], pa.int16()),
        "step": pa.array([step] * len(rows), pa.int64()),
        "optype": pa.array([r[2] for r in rows]).dictionary_encode(),
        "start_ts": pa.array([r[3] for r in rows], pa.float32()),
        "duration": pa.array([r[4] - r[3] for r in rows], pa.float32()),
        "seq_id": pa.array([r[5] for r in rows], pa.int32()),
    }
    pq.write_table(pa.table(columns), path)
    if meta:
        path.with_name(f"meta-{path.stem.removeprefix('trace-')}.yaml").write_text(meta)
    return path


#: Rank 0 computes for 4 s, all others for 1 s; whoever waits, waits for it in the end.
PIPELINE = [
    (0, 0, "forward-compute", 0.0, 4.0, 0),
    (0, 0, "forward-send", 4.0, 4.25, 0),
    (0, 1, "forward-recv", 0.0, 4.25, 0),
    (0, 1, "forward-compute", 4.25, 5.25, 0),
    (1, 0, "forward-compute", 0.0, 1.0, 0),
    (1, 0, "forward-send", 1.0, 1.25, 0),
    (1, 1, "forward-recv", 0.0, 1.25, 0),
    (1, 1, "forward-compute", 1.25, 2.25, 0),
    (0, 0, "grads-reduce-scatter", 4.25, 4.5, 0),
    (1, 0, "grads-reduce-scatter", 1.25, 4.5, 0),
    (0, 1, "grads-reduce-scatter", 5.25, 5.5, 0),
    (1, 1, "grads-reduce-scatter", 2.25, 5.5, 0),
    (0, 0, "gc", 4.5, 4.5, 0),
    (0, 0, "optimizer", 4.5, 5.5, 0),
]


def budget(trace: Trace) -> dict[int, dict[str, float]]:
    out: dict[int, dict[str, float]] = {}
    for row in stashtrace.analyze(trace, "stalls").rows():
        if row["step"] >= 0 and row["stall_ns"]:
            out.setdefault(row["rank"], {})[str(row["kind"])] = row["stall_ns"] / SECOND
    return out


def test_a_pipeline_by_hand(tmp_path: Path) -> None:
    trace = load(write(tmp_path / "trace-X.parquet", PIPELINE, "world_size: 16\ntp_size: 4\n"))
    assert trace.processes["world_size"].tolist() == [16] * 4
    assert trace.ranks.tolist() == [0, 4, 8, 12]
    assert budget(trace) == {
        0: {"compute": 5.0, "interconnect": 0.5},
        4: {"compute": 1.0, "straggler": 3.0, "interconnect": 0.5},
        8: {"compute": 1.0, "straggler": 4.0, "interconnect": 0.5},
        12: {"compute": 1.0, "straggler": 4.0, "interconnect": 0.5},
    }
    op = {trace.text(r["name_code"]): r["op_code"] for r in trace.collectives.rows()}
    assert op["forward-recv"] == CollectiveOp.RECEIVE
    assert op["grads-reduce-scatter"] == CollectiveOp.REDUCE_SCATTER
    members = {trace.text(c) for c in trace.groups["members_code"]}
    assert members == {"0,4", "8,12", "0,8", "4,12"}
    roots = {
        (r["rank"], r["root_rank"]): r["stall_ns"] / SECOND
        for r in stashtrace.analyze(trace, "straggler_roots").rows()
        if r["stall_ns"]
    }
    # The 3 s that rank 12 waits for rank 8 end at rank 0: both compute for a second.
    assert roots == {(4, 0): 3.0, (8, 0): 4.0, (12, 0): 3.0, (12, 4): 1.0}


def test_a_send_waits_for_its_receiver(tmp_path: Path) -> None:
    rows = [
        (0, 0, "forward-compute", 0.0, 1.0, 0),
        (0, 0, "forward-send", 1.0, 3.25, 0),
        (0, 1, "backward-compute", 0.0, 3.0, 0),
        (0, 1, "forward-recv", 3.0, 3.25, 0),
    ]
    trace = load(write(tmp_path / "trace-X.parquet", rows))
    assert budget(trace)[0] == {"compute": 1.0, "straggler": 2.0, "interconnect": 0.25}
    late = stashtrace.analyze(trace, "stragglers")
    assert dict(zip(late["rank"].tolist(), late["caused_wait_ns"].tolist(), strict=True)) == {0: 0, 8: 2 * SECOND}


def test_an_idle_device_of_an_unseen_host_is_not_explained(tmp_path: Path) -> None:
    rows = [(0, 0, "forward-compute", 0.0, 1.0, 0), (0, 0, "optimizer", 3.0, 4.0, 0)]
    trace = load(write(tmp_path / "trace-X.parquet", rows))
    assert budget(trace)[0] == {"compute": 2.0, "other": 2.0}
    assert "does not launch" not in summary(trace)


def test_damaged_rows_and_unknown_operations(tmp_path: Path) -> None:
    rows = [*PIPELINE, (0, 0, "warp-drive", 5.0, 5.25, 0), (0, 0, "optimizer", float("nan"), 6.0, 1)]
    trace = load(write(tmp_path / "trace-X.parquet", rows))
    losses = {trace.text(r["name_code"]): r["lost_count"] for r in trace.losses.rows()}
    assert (losses["damaged_rows"], losses["unknown_operations"]) == (1, 1)


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "trace-X.parquet", PIPELINE)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImporterError, match="which needs pyarrow") as caught:
        load(path)
    assert caught.value.hint == "pip install 'stashtrace[arrow]'"


def test_what_is_no_such_trace(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [1, 2]}), tmp_path / "data.parquet")
    with pytest.raises(ImporterError, match="not a trace that stashtrace knows"):
        load(tmp_path / "data.parquet")
    path = write(tmp_path / "trace-X.parquet", [(0, 0, "optimizer", float("nan"), 1.0, 0)])
    with pytest.raises(ImporterError, match="holds no operation"):
        load(path)
    whole = write(tmp_path / "trace-Y.parquet", PIPELINE).read_bytes()
    for size in range(100, len(whole), 97):
        (tmp_path / "trace-Z.parquet").write_bytes(whole[:size])
        with pytest.raises(ImporterError):
            load(tmp_path / "trace-Z.parquet")
    (tmp_path / "trace-Z.parquet").write_bytes(gzip.compress(whole))
    with pytest.raises(ImporterError):
        load(tmp_path / "trace-Z.parquet")


@cache
def published_job(name: str) -> Trace:
    """A published job; traces do not change, and keep what analyses have found."""
    return load(corpus(f"straggler/trace-{name}.parquet"))


@pytest.fixture(scope="module", params=["AR", "SE"])
def job(request: pytest.FixtureRequest) -> tuple[str, Trace]:
    return request.param, published_job(request.param)


def test_two_jobs_in_one_folder(tmp_path: Path) -> None:
    """Also of one size, and with the same ranks: each file is a job."""
    for name in ("A", "B"):
        write(tmp_path / f"trace-{name}.parquet", PIPELINE, "world_size: 16\n")
    with pytest.raises(ImporterError, match=r"2 jobs: trace-A\.parquet \(rank 0\); trace-B\.parquet \(rank 0\)"):
        load(tmp_path)
    with pytest.raises(ImporterError, match=r"trace-AR\.parquet \(64 ranks\); trace-SE\.parquet \(128 ranks\)"):
        load(corpus("straggler"))


def _lengths(steps: Table) -> dict[tuple[int, int], int]:
    wall = (steps["end_ns"] - steps["begin_ns"]).tolist()
    return dict(zip(zip(steps["rank"].tolist(), steps["step"].tolist(), strict=True), wall, strict=True))


def test_corpus_steps_are_the_published_ones(job: tuple[str, Trace]) -> None:
    name, trace = job
    published = {int(k): v for k, v in reference(f"straggler-{name}.json")["step_t_base"].items()}
    steps = stashtrace.analyze(trace, "steps")
    assert set(steps["step"].tolist()) == set(published)
    for number, seconds in published.items():
        own = steps.take(steps["step"] == number)
        assert len(own) == len(trace.ranks)
        length = int(own["end_ns"].max() - own["begin_ns"].min()) / SECOND
        assert length == pytest.approx(seconds, abs=1e-5), number  # their times are 32-bit floats


def test_corpus_kinds_of_every_rank_sum_to_its_step(job: tuple[str, Trace]) -> None:
    name, trace = job
    stalls = stashtrace.analyze(trace, "stalls")
    assert set(stalls["method"][stalls["step"] >= 0].tolist()) == {"kernels"}
    totals: dict[tuple[int, int], int] = {}
    for rank, step, length in zip(*(stalls[name].tolist() for name in ("rank", "step", "stall_ns")), strict=True):
        totals[rank, step] = totals.get((rank, step), 0) + length
    lengths = _lengths(stashtrace.analyze(trace, "steps"))
    assert {key: totals[key] for key in lengths} == lengths
    table = pq.read_table(corpus(f"straggler/trace-{name}.parquet"))
    computes = np.isin(table["optype"].to_pylist(), ("forward-compute", "backward-compute", "optimizer"))
    ranks, duration = table["rank"].to_numpy(), table["duration"].to_numpy().astype(np.float64)
    for value in trace.ranks.tolist():
        own = (stalls["rank"] == value) & (stalls["kind"] == "compute") & (stalls["step"] >= 0)
        expected = duration[computes & (ranks == value)].sum() * SECOND
        assert int(stalls["stall_ns"][own].sum()) == pytest.approx(expected, rel=2e-4)


def test_corpus_roots_sum_to_the_straggler_time(job: tuple[str, Trace]) -> None:
    _, trace = job
    stalls, roots = stashtrace.analyze(trace, "stalls"), stashtrace.analyze(trace, "straggler_roots")
    expected: dict[tuple[int, int], int] = {}
    for row in stalls.take(stalls["kind"] == "straggler").rows():
        if row["stall_ns"]:
            expected[row["rank"], row["step"]] = row["stall_ns"]
    for column in ("stall_ns", "direct_ns"):
        found: dict[tuple[int, int], int] = {}
        for row in roots.rows():
            found[row["rank"], row["step"]] = found.get((row["rank"], row["step"]), 0) + row[column]
        assert found == expected


def _by_root(trace: Trace) -> dict[int, int]:
    out: dict[int, int] = {}
    for row in stashtrace.analyze(trace, "straggler_roots").rows():
        out[row["root_rank"]] = out.get(row["root_rank"], 0) + row["stall_ns"]
    return out


def test_corpus_the_slowed_worker_is_the_straggler() -> None:
    """AR: one worker was slowed on purpose; the authors blame data-parallel rank 0 and stage 0, which is rank 0."""
    trace = published_job("AR")
    published = reference("straggler-AR.json")["published"]
    by_dp, by_stage = published["blocking_decompose_by_dp_rank"], published["blocking_decompose_by_stage"]
    assert (max(by_dp, key=by_dp.get), max(by_stage, key=by_stage.get)) == ("0", "0")
    found = _by_root(trace)
    ranked = sorted(found, key=lambda rank: -found[rank])
    assert ranked[0] == 0
    assert found[0] > 5 * found[ranked[1]]
    assert found[0] > 0.6 * sum(found.values())
    table = stashtrace.analyze(trace, "stalls", by="rank")
    compute = {r["rank"]: r["share_ratio"] for r in table.rows() if r["kind"] == "compute"}
    assert compute[0] > 0.95
    assert max(share for rank, share in compute.items() if rank) < 0.5
    last = stashtrace.analyze(trace, "stragglers")
    assert last["rank"][last["last_count"].argmax()] == 0


def test_corpus_of_uneven_sequences_nobody_is_the_straggler() -> None:
    """SE: sequence lengths make every worker late at times, those of the last stage more."""
    trace = published_job("SE")
    by_stage = reference("straggler-SE.json")["published"]["blocking_decompose_by_stage"]
    found = _by_root(trace)
    assert max(found.values()) < 0.04 * sum(found.values())
    stages = [sum(ns for rank, ns in found.items() if rank // 64 == stage) for stage in (0, 1)]
    assert (stages[1] > stages[0]) == (by_stage["1"] > by_stage["0"])


@pytest.mark.thorough
def test_corpus_summaries_name_the_published_causes() -> None:
    """AR: the slowed worker. SE: the last stage."""
    ar, se = (" ".join(summary(published_job(name)).split()) for name in ("AR", "SE"))
    assert "▶ rank 0 computes 26.1 s a step (56 %) longer than the others" in ar
    assert "stage 1 computes 6.09 s a step, the other one 4.06 s: an even split makes the step shorter" in se
