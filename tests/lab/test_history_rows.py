"""The rows of a run in a history: what ``check`` knows of the run, who was late, what was read where, what it used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import MS, TraceBuilder, trace_from_text

import stashtrace
from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.gate_verdict import Condition, judge
from stashtrace.analysis.compare.steps_of_run import STEP, steps_of_run
from stashtrace.errors import FormatError
from stashtrace.lab import synth
from stashtrace.lab.history.gather import read_history
from stashtrace.lab.history.policy import POLICY
from stashtrace.lab.history.questions.slow_commits import steps_of_runs
from stashtrace.lab.history.rows_of_run import (
    Mount,
    add_energy,
    add_run,
    add_traffic,
    file_system_of,
    launch_facts,
    mounts_of_host,
    rows_of_run,
)
from stashtrace.lab.history.run_files import Place, RunRows
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.recommend.instance_catalog import load_catalog
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.trace import Trace

ORIGIN = 1_780_000_000 * 10**9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    job = synth.SyntheticJob(ranks=4, steps=60, late_rank=2, late_ns=30_000_000, spread_ratio=0.02, calls_per_batch=60)
    synth.write(folder, job)
    return folder


@pytest.fixture(scope="module")
def trace(made: Path) -> Trace:
    return stashtrace.load(made)


def rows_by_section(out: RunRows, section: str) -> list[dict[str, object]]:
    return [row._asdict() for row in out.all_rows() if row.section == section]


def test_a_run_of_a_history_is_compared_as_its_recording(made: Path, trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    place = Place(str(tmp_path))
    assert add_run(place, trace, made).startswith(f"added to the history {tmp_path}: ")
    assert add_run(place, trace, made) == f"the run is in the history {tmp_path} already"
    totals = RunTotals(read_history(place), load_catalog())
    (kept,), own = steps_of_runs(totals, [0]), steps_of_run(trace)
    assert kept.kinds == own.kinds
    for kind in own.kinds:
        assert np.array_equal(kept.of(kind), own.condensed(POLICY.kept_steps).of(kind))
        for rank in own.ranks_ns:
            assert kept.mean_of_rank(rank, kind) == pytest.approx(own.mean_of_rank(rank, kind), abs=1)
    assert (kept.steps_count, kept.recording, kept.cpus) == (own.steps_count, own.recording, own.cpus)
    assert {k: v for k, v in kept.facts.items() if v} == {k: v for k, v in own.facts.items() if v}
    other = Side("other", (steps_of_run(trace),))
    gates = [judge(Side("run", (one,)), other, [Condition(STEP, 5.0)]) for one in (kept, own)]
    assert [(g.changes[0].low_ns, g.changes[0].high_ns) for g in gates[:1]] == [
        (pytest.approx(g.changes[0].low_ns, rel=1e-6), pytest.approx(g.changes[0].high_ns, rel=1e-6)) for g in gates[1:]
    ]


def test_any_reader_of_parquet_takes_the_files(made: Path, trace: Trace, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    add_run(Place(str(tmp_path)), trace, made)
    query = (
        f"select text as host, sum(mean_ns) / 1e6 as waits_ms from '{tmp_path}/*.parquet' where section = 'rank'"
        " group by host order by waits_ms desc"
    )
    ((host, waits_ms),) = duckdb.connect().execute(query).fetchall()
    assert (host, waits_ms) == ("synth", pytest.approx(30, abs=1))


def test_the_late_rank_and_its_work(made: Path, trace: Trace) -> None:
    out = rows_of_run(trace, launch_facts(made))
    ranks = {row["rank"]: row for row in rows_by_section(out, "rank")}
    assert set(ranks) == {0, 1, 2, 3}
    assert (ranks[2]["name"], ranks[2]["text"]) == ("compute", "synth")
    assert abs(int(str(ranks[2]["mean_ns"])) - 30 * MS) < MS
    assert all(int(str(ranks[rank]["mean_ns"])) < MS for rank in (0, 1, 3))
    assert {row["name"] for row in rows_by_section(out, "verdict")} >= {"late", "data"}


def test_quantiles_of_each_kind_and_rank(made: Path, trace: Trace) -> None:
    out = rows_of_run(trace, launch_facts(made))
    steps = stashtrace.analyze(trace, "steps")
    counted = steps[(steps["rank"] == 1) & (steps["warmup"] == 0)]
    lengths = np.sort(counted["end_ns"] - counted["begin_ns"])
    (row,) = [r for r in rows_by_section(out, "kind") if (r["rank"], r["name"]) == (1, "step")]
    assert (row["value"], row["mean_ns"]) == (len(lengths), round(float(lengths.mean())))
    assert row["p50_ns"] == lengths[-(-len(lengths) // 2) - 1]
    assert row["p10_ns"] <= row["p50_ns"] <= row["p90_ns"] <= row["p99_ns"] <= lengths[-1]


def test_a_recording_without_a_date_has_no_place() -> None:
    with pytest.raises(FormatError, match="does not say when"):
        rows_of_run(trace_from_text("rank 0 phase : FFBBOO FFBBOO"), {})


def test_reads_and_checkpoints_by_file_system() -> None:
    """Two seconds of reads of 10 ms, then 30 ms; a checkpoint of one second at the end, which writes 4 MB."""
    build = TraceBuilder()
    rank = build.rank(0)
    second = 1000 * MS
    for at in range(20):
        length = 10 * MS if at < 10 else 30 * MS
        rank.io(at * 100 * MS, at * 100 * MS + length, path="/data/set/a.bin", result_bytes=1 << 20)
    rank.io(5 * MS, 6 * MS, path="/usr/lib/libc.so.6", result_bytes=100)
    rank.phase("checkpoint", 2 * second, 3 * second)
    for at in range(4):
        begin = 2 * second + at * 200 * MS
        rank.io(begin, begin + 100 * MS, op=IoOp.WRITE, path="/data/checkpoints/x.pt", result_bytes=1_000_000)
    rank.lives(0, 3 * second)
    mounts = (Mount("/data", "nfs4 store:/export"), Mount("/", "ext4 8:1 of here"))
    out = RunRows("x", ORIGIN, ORIGIN + 3 * second)
    add_traffic(out, build.trace(), None, mounts, "/", ORIGIN)
    (counts,), (spent,) = rows_by_section(out, "reads_count"), rows_by_section(out, "reads_ns")
    assert (counts["name"], counts["text"], counts["values"]) == ("nfs4 store:/export", "/data", [10, 10, 0])
    assert spent["values"] == [100 * MS, 300 * MS, 0]
    (written,) = rows_by_section(out, "checkpoint")
    assert (written["name"], written["value"]) == ("nfs4 store:/export", 4_000_000)
    assert (written["begin_ns"], written["end_ns"]) == (ORIGIN + 2 * second, ORIGIN + 3 * second)
    nothing = RunRows("x", ORIGIN, ORIGIN + 3 * second)
    add_traffic(nothing, build.trace(), None, (), "/", ORIGIN)
    assert nothing.rows == []


MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
40 22 0:40 /export /data\040sets rw - nfs4 store:/export rw,vers=4.2
41 22 0:41 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw
42 22 0:42 / /secret rw - cifs //user:hunter2@server/share rw
broken line
"""


def test_shared_file_systems_have_one_name_on_all_hosts(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    first, second = (mounts_of_host(host, f"{host}boot", tmp_path / "mountinfo") for host in ("node01", "node02"))

    def name(mounts: tuple[Mount, ...], path: str, directory: str = "/") -> str:
        found = file_system_of(path, mounts, directory)
        return found.name

    assert name(first, "/data sets/a/b") == name(second, "b", "/data sets/a") == "nfs4 store:/export"
    assert name(first, "/lustre/x") == "lustre 10.0.0.1@tcp:/fs"
    assert name(first, "/data") != name(second, "/data")
    assert name(first, "/lustrous/x") == name(first, "/")
    assert "hunter2" not in name(first, "/secret/x")
    assert file_system_of("/x", (), "/") is None
    assert mounts_of_host("x", "y", tmp_path / "none") == ()


def test_energy_by_kind_of_time() -> None:
    """400 W while the rank computes, 100 W while it waits for batches, for as long each: a fifth goes to the waits."""
    build = TraceBuilder()
    rank = build.rank(0)
    gpu = rank.gpu(0, uuid="GPU-1")
    del gpu
    watts, step = {}, 200 * MS
    for at in range(20):
        begin = at * step
        rank.batch_wait(at, begin, begin + 100 * MS)
        rank.phase("forward", begin + 100 * MS, begin + 150 * MS).phase("backward", begin + 150 * MS, begin + 190 * MS)
        rank.phase("optimizer", begin + 190 * MS, begin + step)
        for moment in range(5, 200, 10):
            watts[begin + moment * MS] = 100.0 if moment < 100 else 400.0
    build.counter(0, "gpu_power_watts.GPU-1", watts, "watts")
    build.counter(0, "gpu_energy_joules_total.GPU-1", {0: 50.0, 20 * step: 1050.0}, "joules")
    out = RunRows("x", ORIGIN, ORIGIN + 20 * step)
    add_energy(out, build.trace())
    used = {row["name"]: int(str(row["value"])) for row in rows_by_section(out, "energy")}
    assert sum(used.values()) == pytest.approx(1_000_000, abs=20)
    assert used["compute"] == pytest.approx(800_000, rel=0.03)
    waits = sum(value for name, value in used.items() if name in ("fetch", "prep", "handoff", "other"))
    assert waits == pytest.approx(200_000, rel=0.1)


def test_without_samples_there_is_no_energy(trace: Trace) -> None:
    out = RunRows("x", ORIGIN, ORIGIN + 1)
    add_energy(out, trace)
    assert out.rows == []
