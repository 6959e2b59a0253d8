"""NCCL's hooks on a minimal double of the library, and its plugin called in the orders of NCCL's versions."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recorded import NATIVE, Recording, record

from stashtrace.format.reader import open_run
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, CommEvent, NcclFlag

SOURCE = Path(__file__).resolve().parents[2] / "csrc"
SHARED_MEMORY_FREE = (
    os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_bsize if Path("/dev/shm").exists() else 0
)
needs_shared_memory = pytest.mark.skipif(
    SHARED_MEMORY_FREE < 128 << 20, reason="less than 128 MiB free in /dev/shm: device stamps are off"
)


@functools.cache
def built() -> Path:
    """Folder with the doubles and programs."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = Path(tempfile.mkdtemp(prefix="stashtrace-nccl-"))
    shared = [compiler, "-std=c++20", "-O1", "-w", "-I", str(SOURCE), "-shared", "-fPIC"]
    soname = "-Wl,-soname,libnccl.so.2"
    double = str(NATIVE / "nccl_double.cpp")
    program = [compiler, "-std=c++20", "-O1", "-w", "-I", str(SOURCE)]
    linked = [str(NATIVE / "nccl_scenes.cpp"), str(folder / "libnccl.so.2"), "-pthread"]
    for command in (
        [*shared, soname, "-o", str(folder / "libnccl.so.2"), double],
        [*shared, "-o", str(folder / "libnccl-profiler-other.so"), str(NATIVE / "nccl_other_plugin.cpp")],
        [*program, "-o", str(folder / "scenes"), *linked],
        [*shared, "-o", str(folder / "libscenes.so"), *linked],
        [*program, "-o", str(folder / "orders"), str(NATIVE / "nccl_orders.cpp"), "-ldl", "-pthread"],
    ):
        subprocess.run(command, check=True)
    return folder


def run(run_dir: Path, *command: str, **env: str) -> Recording:
    folder = built()
    variables = {"LD_LIBRARY_PATH": str(folder), **env}
    return record([folder / command[0], *command[1:]], run_dir, collectors=("nccl", "cuda"), env=variables)


def rows(recording: Recording, name: str) -> list[dict[str, Any]]:
    """Raw rows of one record, in the order in which they were written per thread; texts in place of ids."""
    found = []
    for process in open_run(recording.directory).processes:
        raw = process.load()
        if name not in raw.records:
            continue
        for row in raw.records[name].rows:
            names = row.dtype.names or ()
            values = {f: row[f].item() for f in names}
            values |= {f: raw.strings.get(values[f], "") for f in names if f.endswith("_id") and f[:-3] in TEXTS}
            found.append(values)
    return found


TEXTS = {"reason", "detail", "key", "value", "algorithm", "protocol", "name"}


def losses(recording: Recording) -> dict[str, int]:
    return {r["reason_id"]: r["lost_count"] for r in rows(recording, "loss")}


def facts(recording: Recording) -> dict[str, str]:
    return {r["key_id"]: r["value_id"] for r in rows(recording, "metadata")}


def test_calls_in_order(tmp_path: Path) -> None:
    calls = rows(run(tmp_path / "run", "scenes"), "nccl_call")
    main = calls[0]["group_hash"]
    own = sorted((r for r in calls if r["group_hash"] == main), key=lambda r: (r["sequence"], r["call_ticks"]))
    seen = [(CollectiveOp(r["op_code"]).name, r["message_bytes"], r["peer_rank"]) for r in own]
    assert seen == [
        ("ALL_REDUCE", 400, -1),
        ("REDUCE_SCATTER", 160, -1),
        ("BROADCAST", 80, 3),
        ("ALL_REDUCE", 2664, -1),
        ("ALL_REDUCE", 3108, -1),
        ("SEND", 20, 2),
        ("RECEIVE", 20, 0),
        ("ALL_TO_ALL", 128, -1),
    ]
    # ncclBcast calls ncclBroadcast: once. The simulated group took no number.
    assert [r["sequence"] for r in own] == list(range(8))
    assert len({r["call_id"] for r in calls}) == len(calls)
    assert all(r["call_ticks"] <= r["return_ticks"] and r["source_code"] == CollectiveSource.EVENTS for r in calls)


def test_eight_threads(tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "scenes", "threads")
    per_group = Counter(r["group_hash"] for r in rows(recording, "nccl_call"))
    assert sorted(per_group.values()) == [100] * 8
    batches = Counter(r["batch_id"] for r in rows(recording, "nccl_call"))
    assert sorted(batches.values()) == [10] * 80


ATTACH = """
import ctypes, os, sys
os.environ["STASHTRACE_DIR"] = sys.argv[1]
os.environ["STASHTRACE_COLLECTORS"] = "nccl,cuda"
os.environ.pop("LD_PRELOAD", None)
from stashtrace import _native
assert _native.attach_nccl() == 0
scenes = ctypes.CDLL(sys.argv[2])
first, second = _native.attach_nccl(), _native.attach_nccl()
scenes.main(1, None)
print(first > 10, second)
_native.flush()
"""


def test_attach_to_a_running_process(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    env |= {"LD_LIBRARY_PATH": str(built()), "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", ATTACH, str(run_dir), str(built() / "libscenes.so")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "True 0" in done.stdout
    attached = rows(Recording(run_dir, "", "", 0), "nccl_call")
    assert len(attached) == 9, "eight of the communicator, one of its half"
    assert all(r["nccl_flags"] & NcclFlag.ATTACHED for r in attached)


@needs_shared_memory
@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_plugin_orders(version: int, tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "orders", str(version), "plain", STASHTRACE_NCCL_SOURCE="plugin")
    tasks = rows(recording, "nccl_task")
    first = next(t for t in tasks if t["begin_device_ns"] == 4000)
    assert (first["end_device_ns"], first["channels_count"], first["timed_count"]) == (9000, 2, 2)
    assert (first["algorithm_id"], first["protocol_id"], first["plugin_index"]) == ("RING", "SIMPLE", 0)
    untimed = next(t for t in tasks if t is not first)
    assert (untimed["begin_device_ns"], untimed["end_device_ns"], untimed["timed_count"]) == (-1, -1, 0)
    call = next(r for r in rows(recording, "nccl_call") if r["message_bytes"] == 4000)
    assert call["call_id"] == first["call_id"]
    assert (call["op_code"], call["source_code"]) == (CollectiveOp.ALL_REDUCE, CollectiveSource.PLUGIN)
    ours = next(r for r in rows(recording, "nccl_proxy") if r["is_send_code"])
    assert (ours["task_id"], ours["steps_count"], ours["transfer_bytes"], ours["peer_rank"]) == (
        first["task_id"],
        2,
        8192,
        3,
    )
    assert all(ours[f"{kind}_wait_ticks"] > 0 for kind in ("gpu", "peer", "wire"))
    foreign = next(r for r in rows(recording, "nccl_proxy") if not r["is_send_code"])
    assert foreign["task_id"] == 0
    assert foreign["flush_wait_ticks"] > 0
    comm = rows(recording, "nccl_comm")
    assert [(r["event_code"], r["group_rank"], r["group_size"], r["nodes_count"], r["name_id"]) for r in comm] == [
        (CommEvent.PLUGIN_INIT, 1, 4, 2, "job")
    ]
    assert comm[0]["group_hash"] == 0xABC0 + version
    counted = losses(recording)
    assert counted["stamp_order"] == 1
    assert counted["proxy_for_other_process"] == 1
    assert counted["untimed_operations"] == 1
    assert facts(recording)["nccl_source"] == "plugin"


@needs_shared_memory
@pytest.mark.parametrize("version", [5, 7])
def test_graph_replays_name_the_captured_call(version: int, tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "orders", str(version), "graph", STASHTRACE_NCCL_SOURCE="plugin")
    tasks = rows(recording, "nccl_task")
    (call,) = rows(recording, "nccl_call")
    assert call["nccl_flags"] & NcclFlag.CAPTURED
    assert [t["begin_device_ns"] for t in tasks] == [-1] * 3, "stamps of a graph are not to be trusted"
    assert not int(recording.stdout) & 0x40, "the next call is not asked for stamps"
    assert losses(recording)["stamps_captured"] == 1
    assert all(t["call_id"] == call["call_id"] and t["nccl_flags"] & NcclFlag.REPLAYED for t in tasks)


@needs_shared_memory
@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_messages_of_a_rank_to_itself(version: int, tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "orders", str(version), "itself", STASHTRACE_NCCL_SOURCE="plugin")
    *own, other = rows(recording, "nccl_task")
    if version == 7:  # they have stamps as others have, and none came
        assert losses(recording)["plugin_pool_full"] > 0
        return
    assert len(own) == 10000
    assert "plugin_pool_full" not in losses(recording), "nobody waits for stamps that do not come"
    assert other["begin_device_ns"] == -1, "NCCL counts what follows apart on host and device"
    assert losses(recording)["stamps_shifted"] == 1


@pytest.mark.parametrize("version", [5, 7])
@pytest.mark.parametrize("chained", [False, True])
def test_proxy_operation_for_another_process(chained: bool, version: int, tmp_path: Path) -> None:
    env = {"NCCL_PROFILER_PLUGIN": "other"} if chained else {}
    recording = run(tmp_path / "run", "orders", str(version), "elsewhere", **env)
    assert recording.exit_code == 0
    proxies = rows(recording, "nccl_proxy")
    assert [(r["task_id"], r["transfer_bytes"]) for r in proxies] == [(0, 4096)] * 3
    assert losses(recording)["proxy_for_other_process"] == 3
    if chained and version == 5:
        assert "other: 6 starts 6 stops" in recording.stdout


@needs_shared_memory
def test_full_pool_is_counted(tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "orders", "5", "flood", STASHTRACE_NCCL_SOURCE="plugin")
    assert losses(recording)["plugin_pool_full"] == 10000 - 8192
    assert len(rows(recording, "nccl_task")) == 8192


@needs_shared_memory
def test_plugin_from_eight_threads(tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "orders", "5", "threads", STASHTRACE_NCCL_SOURCE="plugin")
    tasks = rows(recording, "nccl_task")
    assert len(tasks) == 1600
    assert all(t["timed_count"] == 4 and t["begin_device_ns"] == 10 for t in tasks)


@needs_shared_memory
@pytest.mark.parametrize("name", ["other", "path", "libnccl-profiler-other.so"])
def test_chained_plugin_gets_its_events_too(name: str, tmp_path: Path) -> None:
    named = str(built() / "libnccl-profiler-other.so") if name == "path" else name
    recording = run(
        tmp_path / "run", "orders", "5", "plain", STASHTRACE_NCCL_SOURCE="plugin", NCCL_PROFILER_PLUGIN=named
    )
    # Group, call, two operations, three channels; two proxy operations of three steps, which kNetPlugin implies.
    assert "other: 12 starts 12 stops" in recording.stdout
    assert int(recording.stdout.splitlines()[-1]) & 0x80, "its mask is united with ours"
    assert len(rows(recording, "nccl_task")) == 2
    assert next(t for t in rows(recording, "nccl_task") if t["timed_count"])["end_device_ns"] == 9000


def test_chained_plugin_of_another_version(tmp_path: Path) -> None:
    recording = run(
        tmp_path / "run", "orders", "7", "plain", STASHTRACE_NCCL_SOURCE="plugin", NCCL_PROFILER_PLUGIN="other"
    )
    assert "other:" not in recording.stdout
    (reported,) = [r for r in rows(recording, "loss") if r["reason_id"] == "chained_plugin_version"]
    assert reported["detail_id"] == "the chained NCCL profiler plugin does not speak version 7, only 5"


def test_events_alone_leave_the_plugin_silent(tmp_path: Path) -> None:
    recording = run(tmp_path / "run", "orders", "5", "plain", STASHTRACE_NCCL_SOURCE="events")
    assert recording.stdout == "0\n"
    assert not list(recording.directory.glob("*.stash")), "nothing was seen, so nothing is written"
