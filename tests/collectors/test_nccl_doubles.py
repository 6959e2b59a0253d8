"""NCCL's hooks and plugin in jobs on the native doubles: everything that a program can do with its communicators."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from device import run_ranks
from recorded import NATIVE
from traced import ROOT, TracedRun

from stashtrace.format.reader import open_run
from stashtrace.record.environment import LIBRARY_PATH, preload_path
from stashtrace.schema.kinds import CollectiveOp, CommEvent, NcclFlag

OURS = LIBRARY_PATH
COLLECTORS = ("cuda", "nccl")
TEXTS = {"reason_id", "detail_id", "key_id", "value_id", "algorithm_id", "protocol_id", "name_id"}
FREE = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_bsize if Path("/dev/shm").exists() else 0
needs_stamps = pytest.mark.skipif(FREE < 128 << 20, reason="less than 128 MiB free in /dev/shm: device stamps are off")
#: Release of NCCL -> the plugin interface that it speaks.
RELEASES = {22707: 4, 22809: 5, 22902: 6, 23100: 7}


def job(ranks: int, program: Any, folder: Path, script: str = "", **options: Any) -> TracedRun:
    return run_ranks(ranks, program, folder / "job", script, collectors=COLLECTORS, **options)


def rows(run: TracedRun, name: str, rank: int | None = None) -> list[dict[str, Any]]:
    """Raw rows of one record, texts in place of their ids."""
    found = []
    for process in open_run(run.directory).processes:
        raw = process.load()
        if name not in raw.records or (rank is not None and raw.metadata["env"]["RANK"] != str(rank)):
            continue
        for row in raw.records[name].rows:
            values = {f: row[f].item() for f in row.dtype.names or ()}
            values |= {f: raw.strings.get(values[f], "") for f in TEXTS & values.keys()}
            found.append(values | {"pid": raw.metadata["pid"]})
    if name == "nccl_task":  # which thread writes a task's row, and so where it stands, is chance
        found.sort(key=lambda row: (row["pid"], row["task_id"]))
    return found


def clean(run: TracedRun) -> bool:
    """No call failed that would not have failed without the recorder."""
    return all(not result["errors"] for result in run.results())


def reasons(run: TracedRun) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in rows(run, "loss"):
        found[row["reason_id"]] += row["lost_count"]
    return dict(found)


@functools.cache
def other_plugin(version: int) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = Path(tempfile.mkdtemp(prefix="stashtrace-plugin-")) / "libnccl-profiler-other.so"
    flags = ["-std=c++20", "-O1", "-w", "-I", str(ROOT / "csrc"), "-shared", "-fPIC", f"-DOTHER_VERSION={version}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(NATIVE / "nccl_other_plugin.cpp")], check=True)
    return library


def test_captured_calls_and_their_replays(tmp_path: Path) -> None:
    program = """
        allreduce 1MB stream=1
        capture stream=1 graph=1 { allreduce 2MB stream=1; group { allreduce 1MB stream=1; allreduce 1MB stream=1 } }
        repeat 2 { launch graph=1 stream=1 }
        sync stream=1
    """
    run = job(2, program, tmp_path, "nccl.nodes 2")
    assert clean(run)
    calls = rows(run, "nccl_call", 0)
    assert [bool(c["nccl_flags"] & NcclFlag.CAPTURED) for c in calls] == [False, True, True, True]
    tasks = rows(run, "nccl_task", 0)
    # Proxies of the network take part, so NCCL reports each launch of the graph.
    replayed = [t["call_id"] for t in tasks if t["nccl_flags"] & NcclFlag.REPLAYED]
    assert sorted(replayed) == sorted([c["call_id"] for c in calls[1:]] * 2)
    assert [t["call_id"] for t in tasks if not t["nccl_flags"] & NcclFlag.REPLAYED] == [calls[0]["call_id"]]
    # An event inside the graph would be one of the graph: brackets of captured calls have none.
    captured = {c["call_id"] for c in calls[1:]}
    assert all(
        b["begin_device_ns"] == -1
        for b in rows(run, "device_bracket", 0)
        if b["bracket_code"] == 3 and b["correlation_id"] in captured
    )


def test_captured_calls_do_not_use_up_the_places_of_others(tmp_path: Path) -> None:
    # Nothing reports when a graph is gone, so the plugin keeps what its replays may name, but not without end.
    program = """
        capture stream=1 graph=1 { repeat 9000 { allreduce 4KB stream=1 } }
        repeat 3 { allreduce 1MB stream=1 }; sync stream=1
    """
    run = job(2, program, tmp_path)
    assert clean(run)
    last = [c["call_id"] for c in rows(run, "nccl_call", 0) if c["message_bytes"] == 1_000_000]
    assert [t["call_id"] for t in rows(run, "nccl_task", 0)][-3:] == last
    assert reasons(run)["plugin_pool_full"] == 2 * (9000 - 4096)


@needs_stamps
def test_abort_with_work_in_flight(tmp_path: Path) -> None:
    # Rank 1 never comes: the operation of rank 0 hangs until it is aborted.
    program = {
        0: "allreduce 1MB stream=1; sync stream=1; allreduce 4MB stream=1; sleep 20ms; comm abort",
        1: "allreduce 1MB stream=1; sync stream=1; sleep 30ms; comm abort",
    }
    run = job(2, program, tmp_path, nccl_source="plugin")
    assert clean(run)
    assert [r["event_code"] for r in rows(run, "nccl_comm", 0)] == [
        CommEvent.PLUGIN_INIT,
        CommEvent.INIT,
        CommEvent.ABORT,
    ]
    done, hung = rows(run, "nccl_task", 0)
    assert done["timed_count"] == 2
    assert (hung["timed_count"], hung["end_device_ns"]) == (0, -1)
    assert hung["group_hash"] == done["group_hash"]
    times = {r["message_bytes"]: r["device_end_ns"] for r in run.trace.collectives.rows() if r["rank"] == 0}
    assert times[1_000_000] > 0
    assert times[4_000_000] == -1


@needs_stamps
def test_destroyed_with_work_in_flight_and_its_place_reused(tmp_path: Path) -> None:
    program = """
        comm init new=1; allreduce 100MB comm=1 stream=1; comm destroy comm=1
        comm init new=2; allreduce 1MB comm=2 stream=2; comm destroy comm=2
        comm init new=3; allreduce 1MB comm=3 stream=2; comm destroy comm=3
        sync device
    """
    run = job(2, program, tmp_path, nccl_source="plugin")
    assert clean(run)
    hashes = {c["call_id"]: c["group_hash"] for c in rows(run, "nccl_call", 0)}
    tasks = rows(run, "nccl_task", 0)
    assert len(set(hashes.values())) == 3
    assert {t["call_id"]: t["group_hash"] for t in tasks} == hashes
    assert all(t["timed_count"] == 2 for t in tasks)


def test_lost_stops_end_with_their_communicator(tmp_path: Path) -> None:
    program = """
        comm init new=1; repeat 4 { allreduce 1MB comm=1 stream=1 }; sync stream=1; comm destroy comm=1
        comm init new=2; allreduce 1MB comm=2 stream=1; sync stream=1
    """
    run = job(2, program, tmp_path, "nccl.lost 2", nccl_source="plugin")
    assert clean(run)
    hashes = {c["call_id"]: c["group_hash"] for c in rows(run, "nccl_call", 0)}
    assert {t["call_id"]: t["group_hash"] for t in rows(run, "nccl_task", 0)} == hashes


def test_non_blocking_communicators_join_the_plugin(tmp_path: Path) -> None:
    program = """
        comm init new=0 nonblocking named
        comm split new=1 color=0 nonblocking; comm await comm=1
        comm split new=2 color=0 key=0
        repeat 3 { allreduce 1MB comm=1 stream=1; allreduce 1MB comm=2 stream=2 }
        sync stream=1; sync stream=2
    """
    run = job(2, program, tmp_path, "nccl.nonblocking.delay 3ms")
    assert clean(run)
    for rank in (0, 1):
        made = [r for r in rows(run, "nccl_comm", rank) if r["event_code"] in (CommEvent.INIT, CommEvent.SPLIT)]
        assert [(r["group_rank"], r["group_size"]) for r in made] == [(rank, 2)] * 3
        # The plugin hears of a non-blocking communicator after its call has returned.
        heard = [r for r in rows(run, "nccl_comm", rank) if r["event_code"] == CommEvent.PLUGIN_INIT]
        assert [r["nodes_count"] for r in heard] == [1] * 3
        assert made[0]["name_id"] == "job"
        seen = {r["group_hash"] for r in rows(run, "nccl_comm", rank) if r["event_code"] == CommEvent.PLUGIN_INIT}
        assert seen == {r["group_hash"] for r in made}, "both sources must name one communicator the same way"
    late = [c for c in rows(run, "nccl_call", 0) if c["nccl_flags"] & NcclFlag.NON_BLOCKING]
    assert len(late) == 3
    assert all(c["status_code"] == 7 and not c["nccl_flags"] & NcclFlag.FAILED for c in late)
    groups = {r["group_hash"] for r in run.trace.collectives.rows()}
    assert len(groups) == 2, "ranks agree on who is who"


@pytest.mark.parametrize("late", [0, 1])
def test_size_that_is_not_known_at_first(late: int, tmp_path: Path) -> None:
    program = """
        comm init new=0; comm split new=1 color=0 nonblocking; comm await comm=1
        reducescatter 4MB comm=1 stream=1; sync stream=1
    """
    run = job(2, program, tmp_path, f"nccl.children.late {late}\nnccl.nonblocking.delay 5ms")
    assert clean(run)
    (split,) = [r for r in rows(run, "nccl_comm", 1) if r["event_code"] == CommEvent.SPLIT]
    assert (split["group_rank"], split["group_size"], split["nodes_count"]) == (1, 2, 1)
    (call,) = rows(run, "nccl_call", 1)
    assert call["message_bytes"] == 4_000_000, "this rank's input needs the size"
    assert "communicator_unknown" not in reasons(run)


@needs_stamps
def test_grown_communicator_is_one_on_all_ranks(tmp_path: Path) -> None:
    old = "comm init new=0; comm split new=1 color=0; comm grow comm=1 new=5 size=3; "
    new = "comm init new=0; comm split new=9 color=1; comm grow new=5 size=3 rank=2; "
    work = "allreduce 3MB comm=5 stream=1; sync stream=1"
    run = job(3, {0: old + work, 1: old + work, 2: new + work}, tmp_path, nccl_version=22902)
    assert clean(run)
    grown = [r for r in rows(run, "nccl_comm") if r["event_code"] == CommEvent.GROW]
    assert sorted((r["group_rank"], r["group_size"]) for r in grown) == [(0, 3), (1, 3), (2, 3)]
    assert len({r["group_hash"] for r in grown}) == 1
    assert len({r["group_hash"] for r in run.trace.collectives.rows()}) == 1


def test_every_way_to_make_a_communicator(tmp_path: Path) -> None:
    program = """
        comm init new=1 config named; comm init new=2 scalable; comm shrink comm=1 new=3 without=1
        allreduce 1MB comm=1 stream=1; allreduce 1MB comm=2 stream=1; sync stream=1
        comm finalize comm=2; comm destroy comm=2; comm revoke comm=1
    """
    only = program.replace("comm shrink comm=1 new=3 without=1", "")
    run = job(2, {0: program, 1: only}, tmp_path)
    assert clean(run)
    events = [r["event_code"] for r in rows(run, "nccl_comm", 0) if r["event_code"] != CommEvent.PLUGIN_INIT]
    assert events == [
        CommEvent.INIT,
        CommEvent.INIT,
        CommEvent.SHRINK,
        CommEvent.FINALIZE,
        CommEvent.DESTROY,
        CommEvent.REVOKE,
        CommEvent.DESTROY,
        CommEvent.DESTROY,
    ]
    assert len({r["group_hash"] for r in run.trace.collectives.rows()}) == 2


def test_all_devices_of_one_process(tmp_path: Path) -> None:
    run = job(
        1,
        "comm all new=0; group { allreduce 1MB comm=0 stream=1; allreduce 1MB comm=1 stream=2 }; sync device",
        tmp_path,
        "devices 2",
    )
    assert clean(run)
    made = [r for r in rows(run, "nccl_comm") if r["event_code"] == CommEvent.INIT]
    assert [(r["group_rank"], r["group_size"], r["device_index"]) for r in made] == [(0, 2, 0), (1, 2, 1)]
    assert len({r["group_hash"] for r in made}) == 1
    assert len({c["batch_id"] for c in rows(run, "nccl_call")}) == 1


def test_simulated_group_leaves_no_trace(tmp_path: Path) -> None:
    run = job(
        1,
        "allreduce 1MB stream=1; simulate { allreduce 2MB stream=1 }; allreduce 3MB stream=1; sync stream=1",
        tmp_path,
    )
    assert clean(run)
    assert [(c["message_bytes"], c["sequence"]) for c in rows(run, "nccl_call")] == [(1_000_000, 0), (3_000_000, 1)]


COLLECTIVES = "allreduce reduce broadcast allgather reducescatter alltoall gather scatter"


def test_calls_of_new_releases_through_import_tables(tmp_path: Path) -> None:
    own = "; ".join(f"{name} 8KB stream=1 config" for name in COLLECTIVES.split()) + "; sync stream=1; "
    one_sided = {
        0: "put 4KB peer=1 stream=1; signal peer=1 stream=1; sync stream=1",
        1: "repeat 2 { wait_signal peer=0 stream=1 }; sync stream=1",
    }
    run = job(2, {rank: own + text for rank, text in one_sided.items()}, tmp_path, nccl_version=23100)
    assert clean(run)
    calls = rows(run, "nccl_call", 0)
    ops = [CollectiveOp(c["op_code"]).name for c in calls]
    assert ops == [
        "ALL_REDUCE",
        "REDUCE",
        "BROADCAST",
        "ALL_GATHER",
        "REDUCE_SCATTER",
        "ALL_TO_ALL",
        "GATHER",
        "SCATTER",
        "OTHER",
        "OTHER",
    ]
    assert [c["message_bytes"] for c in calls] == [8000, 8000, 8000, 4000, 8000, 8000, 4000, 8000, 4000, 0]
    assert [c["sequence"] for c in calls] == list(range(10))
    assert [c["op_code"] for c in rows(run, "nccl_call", 1)][-2:] == [CollectiveOp.OTHER] * 2


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6])
def test_every_error_of_every_call_reaches_the_program(code: int, tmp_path: Path) -> None:
    names = re.findall(r"NCCL_CALL\((nccl\w+),", (ROOT / "csrc/abi/nccl_abi.h").read_text(encoding="utf-8"))
    script = "\n".join(f"fail {name} {code} first 1" for name in names if name != "ncclCommUserRank")
    calls = [f"{n} 8KB comm=1 stream=1 {kind}" for n in COLLECTIVES.split() for kind in ("", "config")]
    program = f"""
        repeat 2 {{ comm init new=1; comm init new=2 config; comm init new=3 scalable; comm all new=4 }}
        repeat 2 {{ {"; ".join(calls)}; bcast 8KB comm=1 stream=1 }}
        repeat 3 {{ group {{ send 4KB peer=0 comm=1 stream=1; recv 4KB peer=0 comm=1 stream=1 }} }}
        repeat 2 {{ comm split comm=1 new=6; comm grow comm=1 new=7 size=1 }}
        repeat 2 {{ put 4KB comm=1 stream=2; signal comm=1 stream=2 }}
        repeat 2 {{ comm finalize comm=2; comm revoke comm=3; comm shrink comm=1 new=8 without=5; simulate {{ }} }}
        sync stream=1; comm destroy comm=2
    """
    bare = run_ranks(1, program, tmp_path / "bare", script, nccl_version=23100, traced=False)
    run = job(1, program, tmp_path, script, nccl_version=23100)
    assert run.results() == bare.results()
    assert len(run.results()[0]["errors"]) > 20
    failed = [c for c in rows(run, "nccl_call") if c["nccl_flags"] & NcclFlag.FAILED]
    assert {c["status_code"] for c in failed} == {code}
    assert {CollectiveOp(c["op_code"]).name for c in failed} >= {"ALL_REDUCE", "SCATTER", "BROADCAST", "OTHER"}
    kept = Counter(
        CollectiveOp(c["op_code"]).name for c in rows(run, "nccl_call") if not c["nccl_flags"] & NcclFlag.FAILED
    )
    assert kept["ALL_REDUCE"] >= 2, "it goes on after an error"


@pytest.mark.parametrize("gone", ["ncclCommGetAsyncError", "ncclCommUserRank", "ncclCommCuDevice", "ncclGetVersion"])
def test_missing_symbol(gone: str, tmp_path: Path) -> None:
    run = job(2, "repeat 2 { allreduce 1MB stream=1 }; sync stream=1", tmp_path, missing=[gone])
    assert clean(run)
    assert len(rows(run, "nccl_call", 0)) == 2


def test_threads(tmp_path: Path) -> None:
    run = job(2, "storm 8 calls=50; sync device", tmp_path)
    assert clean(run)
    calls = Counter(c["group_hash"] for c in rows(run, "nccl_call", 0))
    assert sorted(calls.values()) == [150] * 8
    assert Counter(t["group_hash"] for t in rows(run, "nccl_task", 0)) == calls
    for group in calls:
        numbers = sorted(c["sequence"] for c in rows(run, "nccl_call", 0) if c["group_hash"] == group)
        assert numbers == list(range(150))
        break


def test_forked_child_writes_nothing_of_its_parent(tmp_path: Path) -> None:
    program = """
        allreduce 300MB stream=1
        child { sleep 5ms }
        child { allreduce 1MB comm=3 stream=2; comm abort comm=3 }
        sync stream=1; allreduce 2MB stream=1; sync stream=1
    """
    bare = run_ranks(2, program, tmp_path / "bare", traced=False)
    run = job(2, program, tmp_path)
    assert run.results() == bare.results()
    [group] = {c["group_hash"] for c in rows(run, "nccl_call", 0) if c["message_bytes"] == 300_000_000}
    tasks = [t for t in rows(run, "nccl_task", 0) if t["group_hash"] == group]
    assert len(tasks) == 2
    assert len({t["pid"] for t in tasks}) == 1


@pytest.mark.thorough
def test_more_communicators_than_there_are_places(tmp_path: Path) -> None:
    program = """
        comm init new=1; repeat 1100 { comm init new=2 }
        group { send 1MB peer=0 comm=1 stream=1; recv 1MB peer=0 comm=1 stream=1 }
        group { send 1MB peer=0 comm=2 stream=1; recv 1MB peer=0 comm=2 stream=1 }; sync device
    """
    run = job(1, program, tmp_path, env={"STASHTRACE_NCCL_CHAIN": str(other_plugin(5))})
    assert clean(run)
    assert reasons(run)["too_many_communicators"] > 0
    # NCCL has one mask for all: the communicator that has a place must not lose its events.
    assert [t["op_code"] for t in rows(run, "nccl_task")] == [CollectiveOp.SEND, CollectiveOp.RECEIVE]
    assert len(rows(run, "nccl_call")) == 4


@needs_stamps
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("release", RELEASES)
def test_chained_plugin_gets_what_it_gets_alone(release: int, static: bool, tmp_path: Path) -> None:
    library = other_plugin(RELEASES[release])
    program = """
        repeat 3 { allreduce 1MB stream=1 }
        group { send 1MB peer=OTHER stream=1; recv 1MB peer=OTHER stream=1 }
        sync stream=1
    """
    both = {rank: program.replace("OTHER", str(1 - rank)) for rank in (0, 1)}
    script = "nccl.nodes 2\nnccl.steps 2"
    alone = run_ranks(
        2,
        both,
        tmp_path / "alone",
        script,
        traced=False,
        nccl_version=release,
        env={"NCCL_PROFILER_PLUGIN": str(library)},
    )
    env = {"STASHTRACE_NCCL_CHAIN": str(library), "STASHTRACE_NCCL_SOURCE": "plugin"}
    if static:
        first = os.environ.get("STASHTRACE_TEST_PRELOAD", "")  # a sanitizer's libraries
        preloaded = f"{first}:{preload_path(OURS)}:{library}".lstrip(":")
        env |= {"STASHTRACE_NCCL_CHAIN": "STATIC_PLUGIN", "LD_PRELOAD": preloaded}
    run = job(2, both, tmp_path, script, nccl_version=release, env=env)
    reported = [text.splitlines()[0] for text in run.stdout]
    assert reported == [text.splitlines()[0] for text in alone.stdout]
    assert re.match(r"other: \d\d+ starts", reported[0])
    assert len(rows(run, "nccl_task", 0)) == 5
    assert all(t["timed_count"] for t in rows(run, "nccl_task", 0))
    assert not {"chained_plugin_version", "chained_plugin_missing"} & reasons(run).keys()


@pytest.mark.parametrize(
    ("chained", "reason"), [("4", "chained_plugin_version"), ("nothing", "chained_plugin_missing")]
)
def test_chained_plugin_that_cannot_be_used(chained: str, reason: str, tmp_path: Path) -> None:
    name = str(other_plugin(4)) if chained == "4" else "/nowhere/libplugin.so"
    run = job(2, "allreduce 1MB stream=1; sync stream=1", tmp_path, env={"STASHTRACE_NCCL_CHAIN": name})
    assert clean(run)
    assert "other:" not in run.stdout[0]
    assert reasons(run)[reason] == 2
    assert len(rows(run, "nccl_task", 0)) == 1


@needs_stamps
@pytest.mark.parametrize("release", [22902, 23100])
def test_collectives_by_copy_engines(release: int, tmp_path: Path) -> None:
    run = job(2, "repeat 2 { allgather 4MB stream=1 }; sync stream=1", tmp_path, "nccl.ce 1", nccl_version=release)
    assert clean(run)
    tasks = rows(run, "nccl_task", 0)
    assert [bool(t["nccl_flags"] & NcclFlag.COPY_ENGINE) for t in tasks] == [True, True]
    assert {t["op_code"] for t in tasks} == {CollectiveOp.ALL_GATHER}
    assert [t["call_id"] for t in tasks] == [c["call_id"] for c in rows(run, "nccl_call", 0)]
    assert "untimed_operations" not in reasons(run), "nobody promised stamps"
    own = [r for r in run.trace.collectives.rows() if r["rank"] == 0]
    assert len(own) == 2
    assert all(r["device_end_ns"] > r["device_begin_ns"] > 0 for r in own), "events time them"
