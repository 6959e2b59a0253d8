"""Darshan logs: DXT's calls with times, sums for the rest, nothing counted twice, damage reported."""

from __future__ import annotations

import gzip
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from corpus import corpus, reference
from summary.scenes import worded

import stashtrace
from stashtrace.analysis.findings.rules.files import files_claims
from stashtrace.cli import main
from stashtrace.errors import DataLossWarning, ImporterError
from stashtrace.importers import darshan
from stashtrace.importers.darshan import Moved, sums_of
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.trace import Trace

START_S = 1_600_000_000
HEAD = b"3.41\0\0\0\0" + struct.pack("<q", 6567223) + bytes(64)


class Backend:
    """Plays PyDarshan's: a log is a dict of module -> records."""

    def __init__(self, records: dict[str, list[dict[str, Any]]], ranks: int = 2, partial: str = "") -> None:
        self.records, self.ranks, self.partial = records, ranks, partial

    def log_open(self, path: str) -> dict[str, Any]:
        return {"handle": True, "left": {name: list(rows) for name, rows in self.records.items()}}

    def log_close(self, log: dict[str, Any]) -> None:
        log.clear()

    def log_get_job(self, log: object) -> dict[str, Any]:
        return {"start_time_sec": START_S, "start_time_nsec": 5, "nprocs": self.ranks, "jobid": 77}

    def log_get_modules(self, log: object) -> dict[str, Any]:
        return {name: {"ver": 1, "partial_flag": name == self.partial} for name in self.records}

    def log_get_name_records(self, log: object) -> dict[int, str]:
        return {1: "/lustre/a", 2: "/tmp/b"}

    def log_get_mounts(self, log: object) -> list[tuple[str, str]]:
        return [("/", "ext4"), ("/lustre", "lustre")]

    def log_get_exe(self, log: object) -> str:
        return "python train.py "

    def log_get_record(self, log: dict[str, Any], module: str, dtype: str) -> Any:
        return log["left"][module].pop(0) if log["left"][module] else None

    def log_get_dxt_record(self, log: dict[str, Any], module: str) -> Any:
        return self.log_get_record(log, module, "dict")


def counters(module: str, record_id: int, rank: int, times: dict[str, float], **counts: int) -> dict[str, Any]:
    return {
        "id": record_id,
        "rank": rank,
        "counters": {f"{module}_{name}": value for name, value in counts.items()},
        "fcounters": {f"{module}_F_{name}": value for name, value in times.items()},
    }


def segments(record_id: int, rank: int, *reads: tuple[int, int, float, float]) -> dict[str, Any]:
    names = ("offset", "length", "start_time", "end_time")
    rows = [dict(zip(names, read, strict=True)) for read in reads]
    return {"id": record_id, "rank": rank, "hostname": "node3", "read_segments": rows, "write_segments": []}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def loaded(backend: Backend) -> Trace:
        monkeypatch.setattr(darshan, "_backend", lambda source: backend)
        (tmp_path / "job.darshan").write_bytes(HEAD)
        return stashtrace.load(tmp_path / "job.darshan")

    return loaded


READ = {"READ_TIME": 3.0, "META_TIME": 0.25, "OPEN_START_TIMESTAMP": 1.0, "READ_START_TIMESTAMP": 2.0}
READ |= {"READ_END_TIMESTAMP": 6.0, "CLOSE_END_TIMESTAMP": 7.0}


def test_segments_have_their_times(load: Any) -> None:
    slow, fast = (4096, 1000, 2.0, 2.5), (5096, 1000, 2.5, 2.50005)
    trace = load(Backend({"DXT_POSIX": [segments(1, 1, slow, fast)]}))
    io = trace.io
    assert io["begin_ns"].tolist() == [0, 500_000_000]
    assert io["end_ns"].tolist() == [500_000_000, 500_050_000]
    assert io["op_code"].tolist() == [IoOp.READ] * 2
    assert io["offset_bytes"].tolist() == [4096, 5096]
    assert io["io_flags"].tolist() == [IoFlag.NETWORK_FS | IoFlag.BLOCKED, IoFlag.NETWORK_FS]
    assert trace.processes["rank"].tolist() == [1]
    assert trace.text(int(trace.processes["host_code"][0])) == "node3"
    origin = {trace.text(r["key_code"]): trace.text(r["value_code"]) for r in trace.metadata.rows()}
    assert origin["origin_realtime_ns"] == str(START_S * 10**9 + 5 + 2 * 10**9)


def test_what_dxt_has_is_not_summed_again(load: Any) -> None:
    record = counters("POSIX", 1, 1, READ, OPENS=2, READS=3, WRITES=0, BYTES_READ=3000, BYTES_WRITTEN=0, CONSEC_READS=2)
    dxt = segments(1, 1, (0, 1000, 2.0, 3.0), (1000, 1000, 3.0, 4.0))
    trace = load(Backend({"POSIX": [record], "DXT_POSIX": [dxt]}))
    totals = trace.io_totals
    assert totals["reads_count"].tolist() == [1]
    assert totals["read_bytes"].tolist() == [1000]
    assert totals["read_ns"].tolist() == [1_000_000_000]
    found = stashtrace.analyze(trace, "io").to_pandas().iloc[0]
    assert (found["opens_count"], found["reads_count"], found["read_bytes"]) == (2, 3, 3000)
    assert found["call_ns"] == 3_250_000_000


def test_slowest_process_of_records_of_all_ranks(load: Any) -> None:
    shared = counters("POSIX", 1, -1, {**READ, "SLOWEST_RANK_TIME": 0.5}, OPENS=2, READS=2, BYTES_READ=1 << 20)
    own = counters("POSIX", 2, 1, {**READ, "SLOWEST_RANK_TIME": 0.5}, OPENS=1, READS=1, BYTES_READ=1 << 20)
    trace = load(Backend({"POSIX": [shared, own]}))
    assert sorted(trace.io_totals["slowest_process_ns"].tolist()) == [-1, 500_000_000]
    row = next(stashtrace.analyze(trace, "io_bandwidth").rows())
    assert (row["shared_count"], row["shared_ns"]) == (1, 500_000_000)
    spent_ns = row["slowest_process_ns"] + row["shared_ns"]
    assert row["darshan_bytes_per_s"] == pytest.approx((2 << 20) / (spent_ns / 1e9))


def test_shared_record_is_less_than_dxt_of_all_ranks(load: Any) -> None:
    record = counters("POSIX", 1, -1, READ, OPENS=2, READS=2, BYTES_READ=2000)
    dxt = [segments(1, rank, (0, 1000, 2.0, 3.0)) for rank in (0, 1)]
    trace = load(Backend({"POSIX": [record], "DXT_POSIX": dxt}))
    assert trace.io_totals["reads_count"].tolist() == [0]
    assert [trace.text(c) for c in trace.processes["name_code"]] == ["rank 0", "rank 1", "all 2 ranks"]
    assert trace.processes["rank"].tolist() == [0, 1, -1]
    assert not len(trace.losses)


def test_counters_alone_have_sums_and_their_outline(load: Any) -> None:
    posix = counters("POSIX", 2, 0, READ, OPENS=1, READS=4, BYTES_READ=400, CONSEC_READS=2)
    stdio = counters("STDIO", 2, 0, {"WRITE_TIME": -5.0}, OPENS=1, WRITES=6, BYTES_WRITTEN=60)
    with pytest.warns(DataLossWarning, match="negative_times"):
        trace = load(Backend({"POSIX": [posix], "STDIO": [stdio]}))
    assert not len(trace.io)
    totals = trace.io_totals
    assert totals["begin_ns"].tolist() == [0, -1]
    assert totals["end_ns"].tolist() == [6_000_000_000, -1]
    assert totals["write_ns"].tolist() == [0, 0]
    spans = trace.spans
    assert [trace.text(c) for c in spans["name_code"]] == ["reads of /tmp/b"]
    assert (spans["begin_ns"].tolist(), spans["end_ns"].tolist()) == ([1_000_000_000], [5_000_000_000])
    assert spans["value"].tolist() == [400]
    lost = {trace.text(r["name_code"]): r["lost_count"] for r in trace.losses.rows()}
    assert lost == {"calls_without_times": 10, "negative_times": 1}
    found = stashtrace.analyze(trace, "io_directories").to_pandas().iloc[0]
    assert (found["reads_count"], found["writes_count"], found["path"]) == (4, 6, "/tmp")
    assert found["sequential_ratio"] == pytest.approx(2 / 3)
    assert (
        worded(*files_claims(trace))[0].split("; ")[1]
        == "12 I/O calls of 2 processes moved 460 B and took 3.25 s in total"
    )


def test_mpi_io_counts_only_where_posix_is_missing(load: Any) -> None:
    mpi = counters("MPIIO", 1, -1, {"WRITE_TIME": 1.0}, COLL_OPENS=2, COLL_WRITES=3, BYTES_WRITTEN=30)
    posix = counters("POSIX", 1, -1, {"WRITE_TIME": 1.0}, OPENS=2, WRITES=1, BYTES_WRITTEN=30)
    both = load(Backend({"POSIX": [posix], "MPI-IO": [mpi]}))
    assert both.io_totals["writes_count"].tolist() == [1]
    alone = load(Backend({"MPI-IO": [mpi]}))
    assert alone.io_totals["writes_count"].tolist() == [3]
    assert alone.io_totals["opens_count"].tolist() == [2]


def test_incomplete_module_is_reported(load: Any) -> None:
    with pytest.warns(DataLossWarning, match="module_incomplete"):
        load(Backend({"DXT_POSIX": [segments(1, 0, (0, 1, 1.0, 2.0))]}, partial="DXT_POSIX"))


def test_process_without_mpi_has_no_rank(load: Any) -> None:
    trace = load(Backend({"DXT_POSIX": [segments(1, 0, (0, 1, 1.0, 2.0))]}, ranks=1))
    assert trace.processes["rank"].tolist() == [-1]


def test_log_without_files_is_refused(load: Any) -> None:
    with pytest.raises(ImporterError, match="holds no record of POSIX"):
        load(Backend({"LUSTRE": []}))


def test_the_processes_are_those_of_the_job(load: Any) -> None:
    """A record of all ranks stands for the 512 of the header, and so do 4 records of ranks of 512."""
    shared = counters("POSIX", 1, -1, READ, OPENS=2, READS=2, BYTES_READ=2000)
    own = [counters("POSIX", 2, rank, READ, OPENS=1, READS=1, BYTES_READ=10) for rank in range(4)]
    for records in ([shared], own, [shared, *own]):
        said = worded(*files_claims(load(Backend({"POSIX": records}, ranks=512))))[0]
        assert "of 512 processes" in said


def test_time_in_metadata_is_reported(load: Any) -> None:
    record = counters("POSIX", 1, -1, {"READ_TIME": 2.0, "META_TIME": 252.0}, OPENS=2000, READS=20, BYTES_READ=2000)
    said = worded(*files_claims(load(Backend({"POSIX": [record]}, ranks=8))))[0]
    assert "took 254 s in total" in said
    assert "252 s of that (99 %) in opening, closing and looking up files, not in moving bytes" in said


@pytest.mark.parametrize("module", ["DFS", "DAOS", "IO_OF_2031"])
def test_modules_that_are_not_read_are_a_loss(load: Any, module: str) -> None:
    record = counters("POSIX", 1, 0, READ, OPENS=1, READS=1, BYTES_READ=10)
    trace = load(Backend({"POSIX": [record], module: [], "HEATMAP": [], "LUSTRE": []}))
    said = {trace.text(r["name_code"]): trace.text(r["advice_code"]) for r in trace.losses.rows()}
    assert said["module_not_read"] == (
        f"job.darshan: what the job did through {module} is not read, so this I/O is missing here"
    )


def test_a_log_of_such_modules_alone_names_them(load: Any) -> None:
    with pytest.raises(ImporterError, match="no record of POSIX, STDIO or MPI-IO, only DFS, HEATMAP"):
        load(Backend({"DFS": [], "HEATMAP": []}))


class Jobs(Backend):
    """A backend whose logs are of the jobs that their names say."""

    def log_open(self, path: str) -> dict[str, Any]:
        found = re.search(r"_id(\d+)-", path)
        return {**super().log_open(path), "job": int(found[1]) if found else 77}

    def log_get_job(self, log: Any) -> dict[str, Any]:
        return {**super().log_get_job(log), "jobid": log["job"]}


@pytest.mark.parametrize(
    ("ranks", "files", "jobs"),
    [
        (8, ("u_a_id11-500_1.darshan", "u_b_id12-501_1.darshan"), ("job 11", "job 12")),
        (8, ("u_a_id11-500_1.darshan", "u_a_id11-501_1.darshan"), ("job 11, process 500", "job 11, process 501")),
        (1, ("u_a_id11-500_1.darshan", "u_b_id12-501_1.darshan"), ("job 11", "job 12")),
        (1, ("u_a_id11-500_1.darshan", "u_a_id11-501_1.darshan"), ()),  # processes of one job, without MPI
        (1, ("u_a_id500-500_1.darshan", "u_a_id501-501_1.darshan"), ()),  # without a scheduler each has its pid
    ],
)
def test_several_jobs_in_a_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, files: tuple[str, ...], jobs: tuple[str, ...]
) -> None:
    record = counters("POSIX", 1, -1, READ, OPENS=1, READS=1, BYTES_READ=10)
    backend = Jobs({"POSIX": [record]}, ranks=ranks)
    monkeypatch.setattr(darshan, "_backend", lambda source: backend)
    for name in files:
        (tmp_path / name).write_bytes(HEAD)
    if not jobs:
        stashtrace.load(tmp_path)
        return
    with pytest.raises(ImporterError) as refused:
        stashtrace.load(tmp_path)
    assert str(refused.value) == (f"{tmp_path} holds files of 2 jobs: {files[0]} ({jobs[0]}); {files[1]} ({jobs[1]})")


def test_record_that_dxt_holds_whole_leaves_nothing() -> None:
    moved = Moved()
    moved.add(1, 0, IoOp.READ, 2, 20, 1.0)
    record = counters("POSIX", 1, 0, {"READ_TIME": 1.0}, READS=2, BYTES_READ=20)
    assert sums_of("POSIX", record, moved) is None
    assert moved.untimed_count == 0


def test_without_pydarshan_the_hint_says_what_to_install(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "darshan.backend.cffi_backend", None)
    (tmp_path / "job.darshan").write_bytes(HEAD)
    assert main(["analyze", "io", str(tmp_path / "job.darshan")]) == ImporterError.exit_code
    said = capsys.readouterr().err
    assert "is a Darshan log, and PyDarshan is not installed" in said
    assert "hint: pip install 'stashtrace[darshan]'" in said


def test_sniff() -> None:
    assert darshan.sniff(HEAD, Path("x"))
    assert darshan.sniff(HEAD[:8] + HEAD[8:16][::-1], Path("x"))
    assert not darshan.sniff(b"3.41", Path("x.darshan"))


LOGS = ("dxt", "example", "noposix", "sample-dxt-simple", "sample-goodost", "unet3d_a100")


@pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")
@pytest.mark.parametrize("name", LOGS)
def test_corpus_matches_pydarshan(name: str) -> None:
    pytest.importorskip("darshan")
    wanted = reference("darshan.json")[f"{name}.darshan"]["counters"]
    trace = stashtrace.load(corpus(f"darshan/{name}.darshan"))
    dxt = wanted.get("DXT_POSIX", {"read_segments": 0, "write_segments": 0, "read_time": 0.0, "write_time": 0.0})
    assert len(trace.io) == dxt["read_segments"] + dxt["write_segments"]
    seconds = (trace.io["end_ns"] - trace.io["begin_ns"]).sum() / 1e9
    assert seconds == pytest.approx(dxt["read_time"] + dxt["write_time"], abs=1e-5)
    found = stashtrace.analyze(trace, "io")
    layers = [wanted[module] for module in ("POSIX", "STDIO") if module in wanted]
    for ours, theirs in (
        ("opens_count", "opens"),
        ("reads_count", "reads"),
        ("writes_count", "writes"),
        ("read_bytes", "bytes_read"),
        ("write_bytes", "bytes_written"),
    ):
        assert int(found[ours].sum()) == sum(layer[theirs] for layer in layers)
    times = sum(max(layer[t], 0) for layer in layers for t in ("read_time", "write_time", "meta_time"))
    negative = any(trace.text(c) == "negative_times" for c in trace.losses["name_code"])
    assert found["call_ns"].sum() / 1e9 == pytest.approx(times, rel=0.002 if negative else 1e-6, abs=1e-4)


def test_cut_log_says_so_and_stderr_stays_clean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("darshan")
    whole = corpus("darshan/unet3d_a100.darshan").read_bytes()
    (tmp_path / "a.darshan").write_bytes(whole[:50_000])
    with pytest.warns(DataLossWarning, match="log_damaged"):
        trace = stashtrace.load(tmp_path / "a.darshan")
    assert len(trace.io_totals) > 500
    (tmp_path / "b.darshan").write_bytes(whole[:3_000])
    with pytest.raises(ImporterError, match=r"cannot be used: unable to|cannot be used: Error: unable"):
        stashtrace.load(tmp_path / "b.darshan")
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")
def test_gzipped_log(tmp_path: Path) -> None:
    pytest.importorskip("darshan")
    (tmp_path / "a.darshan.gz").write_bytes(gzip.compress(corpus("darshan/sample-dxt-simple.darshan").read_bytes()))
    assert len(stashtrace.load(tmp_path / "a.darshan.gz").io) == 2
