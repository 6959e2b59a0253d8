"""DFTracer's lines: calls into io, functions into spans, the loop into batches, marks and phases."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import corpus, reference

import stashtrace
from stashtrace.errors import DataLossWarning, ImporterError
from stashtrace.importers import dftracer
from stashtrace.schema.kinds import BatchPhase, IoFlag, IoOp, Phase, ProcessRole, SpanKind
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

PID, T0 = 4711, 1_744_611_912_000_000


class Lines:
    """Writes a trace as DFTracer does."""

    def __init__(self, pid: int = PID) -> None:
        self.pid = pid
        self.lines = ["["]
        self.define("HH", "node7", 99)

    def define(self, kind: str, text: str, value: int) -> Lines:
        return self.event(kind, "dftracer", ph="M", args={"name": text, "value": value})

    def event(self, name: str, cat: str, *, ph: str = "X", **more: Any) -> Lines:
        row = {"id": len(self.lines), "name": name, "cat": cat, "pid": self.pid, "tid": self.pid, "ph": ph, **more}
        self.lines.append(json.dumps(row))
        return self

    def call(self, name: str, at_us: int, us: int, cat: str = "POSIX", **args: Any) -> Lines:
        return self.event(name, cat, ts=T0 + at_us, dur=us, args={"hhash": 99, **args})

    def write(self, path: Path, members: int = 1) -> Path:
        lines = [line + "\n" for line in self.lines]
        if path.suffix != ".gz":
            path.write_text("".join(lines) + "]")
            return path
        size = -(-len(lines) // members)
        cuts = ["".join(lines[i : i + size]) for i in range(0, len(lines), size)]
        path.write_bytes(b"".join(gzip.compress(c.encode()) for c in cuts))
        return path


def texts(trace: Trace, table: str, column: str) -> list[str]:
    return [trace.text(code) for code in trace.table(table)[column].tolist()]


def calls() -> Lines:
    lines = Lines().define("FH", "/data/a.h5", 5)
    lines.call("open", 0, 10, fhash=5, ret=3)
    lines.call("pread", 100, 400_000, fhash=5, ret=4096, count=4096, offset=512)
    lines.call("read", 500_000, 5, fhash=5, ret=-1)
    lines.call("fread", 500_100, 8, cat="STDIO", fhash=6, ret=10, size=8, count=10)
    return lines.call("access", 500_200, 3, fhash=5)


def test_calls_become_io_rows(tmp_path: Path) -> None:
    with pytest.warns(DataLossWarning, match="paths_unknown"):
        trace = stashtrace.load(calls().write(tmp_path / "job.pfw"))
    io = trace.io
    assert io["op_code"].tolist() == [IoOp.OPEN, IoOp.PREAD, IoOp.READ, IoOp.FREAD]
    assert io["result_bytes"].tolist() == [0, 4096, -1, 80]
    assert io["offset_bytes"].tolist() == [-1, 512, -1, -1]
    assert (io["end_ns"] - io["begin_ns"]).tolist() == [10_000, 400_000_000, 5_000, 8_000]
    assert io["io_flags"].tolist() == [0, IoFlag.BLOCKED, 0, IoFlag.STDIO]
    assert texts(trace, "io", "path_code") == ["/data/a.h5"] * 3 + [""]
    assert texts(trace, "spans", "name_code") == ["access"]
    assert texts(trace, "processes", "host_code") == ["node7"]
    facts = dict(zip(texts(trace, "metadata", "key_code"), texts(trace, "metadata", "value_code"), strict=True))
    assert facts["origin_realtime_ns"] == str(T0 * 1000)


def test_gzip_members_read_as_one(tmp_path: Path) -> None:
    with pytest.warns(DataLossWarning):
        trace = stashtrace.load(calls().write(tmp_path / "job.pfw.gz", members=3))
    assert len(trace.io) == 4


def test_cut_gzip_gives_what_came_before(tmp_path: Path) -> None:
    lines = Lines().define("FH", "/data/a.h5", 5)
    for turn in range(20_000):
        lines.call("pread", turn * 37, turn % 31, fhash=5, ret=turn, offset=turn * 7)
    whole = lines.write(tmp_path / "job.pfw.gz").read_bytes()
    (tmp_path / "job.pfw.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(DataLossWarning, match="file_cut"):
        trace = stashtrace.load(tmp_path / "job.pfw.gz")
    assert 0 < len(trace.io) < 20_000
    assert trace.io["result_bytes"].tolist() == list(range(len(trace.io)))


def test_torn_lines_are_counted(tmp_path: Path) -> None:
    lines = Lines().call("read", 0, 5, ret=7, fname="/data/b")
    lines.lines += ['{"id":9,"name":"re', '{"name":"read","cat":"POSIX","ph":"X"}', '{"ph":"X","name":3'] * 2
    lines.call("read", 10, 5, ret=8, fname="/data/b").event("x", "y", ph="i")
    with pytest.warns(DataLossWarning, match="lines_unreadable"):
        trace = stashtrace.load(lines.write(tmp_path / "job.pfw"))
    assert texts(trace, "io", "path_code") == ["/data/b"] * 2
    lost = dict(zip(texts(trace, "losses", "name_code"), trace.losses["lost_count"].tolist(), strict=True))
    assert lost == {"lines_unreadable": 6, "events_skipped": 1}


def test_two_files_of_one_hash_are_both_named(tmp_path: Path) -> None:
    lines = Lines().define("FH", "/a", 5).define("FH", "/b", 5).call("read", 0, 1, fhash=5, ret=1)
    with pytest.warns(DataLossWarning, match="hashes_ambiguous"):
        trace = stashtrace.load(lines.write(tmp_path / "job.pfw"))
    assert texts(trace, "io", "path_code") == ["/a or /b"]


def test_file_without_events_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.pfw").write_text("[\n")
    with pytest.raises(ImporterError, match="holds no event"):
        stashtrace.load(tmp_path / "job.pfw")


def test_sniff_leaves_other_json_alone() -> None:
    assert dftracer.sniff(b"[\n{", Path("a-0-of-2.pfw.gz"))
    assert dftracer.sniff(b'[\n{"id":1,"name":"HH","cat":"dftracer"}', Path("trace.json"))
    assert not dftracer.sniff(b'{"schemaVersion": 1, "traceEvents": []}', Path("trace.json"))
    assert not dftracer.sniff(b"", Path("empty.pfw"))


def dlio(pid: int, steps: int) -> Lines:
    """A loop of DLIO: 30 ms of two items, 50 ms of compute, 20 ms of the rest of the body."""
    lines = Lines(pid).define("FH", "/data/a.h5", 5)
    for step in range(steps):
        at = step * 100_000
        for item in (0, 1):
            lines.call("TorchDataset.__getitem__", at + 1_000 + item * 14_000, 14_000, cat="data_loader")
            lines.call("pread", at + 2_000 + item * 14_000, 10_000, fhash=5, ret=1000, offset=0)
            lines.call("pread", at + 12_000 + item * 14_000, 2_000, fhash=5, ret=4_000_000, offset=0)
        if step + 1 < steps:  # the loop is left by break: its last turn is never recorded
            lines.call("loop.iter", at, 30_000, cat="data_loader")
            lines.call("loop.yield", at + 30_000, 70_000, cat="data_loader")
        lines.call("TorchFramework.compute", at + 30_000, 50_000, cat="ai_framework")
    return lines.call("DLIOBenchmark._train", 0, steps * 100_000, cat="dlio_benchmark")


@pytest.fixture
def loop(tmp_path: Path) -> Trace:
    for rank in (0, 1):
        dlio(PID + rank, 20).write(tmp_path / f"trace-{rank}-of-2.pfw")
    return stashtrace.load(tmp_path)


def test_loop_becomes_batches_and_marks(loop: Trace) -> None:
    assert loop.processes["rank"].tolist() == [0, 1]
    assert loop.processes["world_size"].tolist() == [2, 2]
    waits = loop.batches.take((loop.batches["phase_code"] == BatchPhase.WAIT) & (loop.batches["rank"] == 0))
    assert waits["batch_index"].tolist() == list(range(20))
    assert (waits["end_ns"] - waits["begin_ns"]).tolist() == [30_000_000] * 19 + [28_000_000]
    fetches = loop.batches.take((loop.batches["phase_code"] == BatchPhase.FETCH) & (loop.batches["rank"] == 0))
    assert (fetches["end_ns"] - fetches["begin_ns"]).tolist() == [28_000_000] * 20
    assert set(waits["worker_id"].tolist()) == {-1}
    marks = loop.spans.take(loop.spans["kind_code"] == SpanKind.STEP_MARK)
    assert marks["end_ns"][:4].tolist() == [100_000_000] * 2 + [200_000_000] * 2
    assert "loop.iter" not in texts(loop, "spans", "name_code")


def test_stalls_say_that_reading_is_a_guess(loop: Trace) -> None:
    found = stashtrace.analyze(loop, "stalls").to_pandas()
    middle = found[(found["step"] == 10) & (found["rank"] == 1)].set_index("kind")
    assert middle.loc["fetch", "stall_ns"] == 20_000_000
    assert middle.loc["fetch", "low_ns"] == 0
    assert middle.loc["fetch", "high_ns"] == 24_000_000
    assert middle.loc["prep", ["stall_ns", "low_ns", "high_ns"]].tolist() == [10_000_000, 6_000_000, 30_000_000]
    assert middle.loc["compute", ["stall_ns", "low_ns"]].tolist() == [70_000_000, 50_000_000]
    assert middle["stall_ns"].sum() == 100_000_000


def test_summary_says_what_is_a_guess(loop: Trace) -> None:
    said = " ".join(summary(loop).split())
    assert "inferred: which calls waited for storage" in said


def test_named_phases_make_steps(tmp_path: Path) -> None:
    lines = Lines()
    for step in range(4):
        at = step * 1000
        lines.call("fetch.iter", at, 100, cat="dataloader").call("forward", at + 100, 300, cat="compute")
        lines.call("backward", at + 400, 500, cat="compute").call("step", at + 900, 100, cat="compute")
    lines.call("PyTorchCheckpointing.save_checkpoint", 4000, 50, cat="checkpoint")
    lines.call("PyTorchCheckpointing.save_state", 4010, 30, cat="checkpoint")
    trace = stashtrace.load(lines.write(tmp_path / "x.pfw"))
    assert trace.processes["rank"].tolist() == [0]
    assert stashtrace.analyze(trace, "steps")["kind"].tolist() == ["train"] * 4
    assert set(trace.batches["worker_id"].tolist()) == {-2}
    found = stashtrace.analyze(trace, "stalls").to_pandas()
    waited = found[(found["step"] == 2) & (found["kind"] == "handoff")]
    assert waited["high_ns"].tolist() == [100_000]
    counts = np.bincount(trace.phases["phase_code"])
    assert counts[[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.CHECKPOINT]].tolist() == [4, 4, 4, 1]


def test_forked_worker_serves_its_parents_rank(tmp_path: Path) -> None:
    dlio(PID, 3).call("fork", 5, 5, ret=77).write(tmp_path / "trace-0-of-2.pfw")
    worker = Lines(77).call("read", 0, 5, ret=1, fname="/a")
    worker.event("start", "dftracer", ts=T0, dur=0, args={"hhash": 99, "ppid": PID})
    worker.write(tmp_path / "worker.pfw")
    trace = stashtrace.load(tmp_path)
    assert trace.processes["role_code"].tolist() == [ProcessRole.RANK, ProcessRole.WORKER]
    assert trace.processes["rank"].tolist() == [0, 0]
    assert trace.processes["parent_process_id"].tolist() == [-1, 0]


def test_counters(tmp_path: Path) -> None:
    lines = Lines().event("cpu", "sys", ph="C", ts=T0 + 3, args={"user_percent": 12.5, "hhash": "x"})
    trace = stashtrace.load(lines.write(tmp_path / "x.pfw"))
    assert trace.counters["value"].tolist() == [12.5]
    assert "cpu user_percent" in texts(trace, "tracks", "name_code")


def test_corpus_dlio_matches_independent_counts() -> None:
    wanted = reference("dftracer-dlio_unet3d_8.json")
    trace = stashtrace.load(sorted(corpus("dftracer").glob("dlio_unet3d-*.pfw.gz")))
    assert trace.processes["rank"].tolist() == list(range(8))
    io, spans = trace.io, trace.spans
    length = io["end_ns"] - io["begin_ns"]
    for name, op in (("pread", IoOp.PREAD), ("close", IoOp.CLOSE)):
        chosen = io["op_code"] == op
        assert int(chosen.sum()) == wanted["top"][f"POSIX:{name}"]["n"]
        assert int(length[chosen].sum()) == wanted["top"][f"POSIX:{name}"]["dur_us"] * 1000
    totals = stashtrace.analyze(trace, "io")
    assert int(totals["read_bytes"].sum()) == wanted["bytes_moved"]["read"]
    assert int(totals["write_bytes"].sum()) == wanted["bytes_moved"]["write"]
    computes = spans["name_code"] == trace.strings.find("TorchFramework.compute")
    assert int(computes.sum()) == wanted["top"]["ai_framework:TorchFramework.compute"]["n"]
    waits = trace.batches["phase_code"] == BatchPhase.WAIT
    assert int(waits.sum()) == wanted["top"]["ai_framework:TorchFramework.compute"]["n"]  # one a step
    posix_ns = sum(pid["POSIX"] for pid in wanted["dur_by_pid_cat"].values()) * 1000
    others = np.isin(spans["name_code"], [trace.strings.find("fork")])
    assert int(length.sum() + (spans["end_ns"] - spans["begin_ns"])[others].sum()) == posix_ns
    stalls = stashtrace.analyze(trace, "stalls", warmup=True)
    steps = stashtrace.analyze(trace, "steps")
    assert len(steps) == 8 * 25
    inside = stalls["step"] >= 0
    assert int(stalls["stall_ns"][inside].sum()) == int((steps["end_ns"] - steps["begin_ns"]).sum())


def test_corpus_cm1() -> None:
    files = sorted(corpus("dftracer").glob("cm1-*.pfw.gz"))
    with pytest.warns(DataLossWarning, match="hashes_ambiguous"):
        trace = stashtrace.load(files)
    lines = sum(gzip.decompress(file.read_bytes()).count(b'"ph":"X"') for file in files)
    starts_and_ends = 2 * len(files)
    assert len(trace.io) + len(trace.spans) == lines - starts_and_ends
    assert len(stashtrace.analyze(trace, "io_directories")) > 10
