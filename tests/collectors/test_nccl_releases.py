"""What each release of NCCL reports to its plugin, and what becomes of it: operations, groups, times, graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from device import calls, run_ranks
from test_nccl_doubles import RELEASES, clean, job, needs_stamps, other_plugin, reasons, rows
from traced import TracedRun

from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, NcclFlag

#: What moves a number of bytes takes this long: times of another operation are recognised by their length.
SCRIPT = "nccl.bandwidth 1GB\nnccl.latency 0us\nnccl.channels 2"
MESSAGES = (CollectiveOp.SEND, CollectiveOp.RECEIVE)
ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def own(run: TracedRun, rank: int = 0) -> list[dict[str, Any]]:
    return [row for row in run.trace.collectives.rows() if row["rank"] == rank]


def misplaced(run: TracedRun, rank: int = 0) -> list[tuple[int, float]]:
    """Timed operations (bytes, milliseconds) whose times are another one's; all ranks enter an operation together.

    Sizes differ at least twofold, and a busy machine reads the device's clock by a tenth of a millisecond late.
    """
    found = []
    for row in own(run, rank):
        milliseconds = (row["device_end_ns"] - row["device_begin_ns"]) / 1e6
        if row["device_begin_ns"] > 0 and milliseconds < 0.6 * row["message_bytes"] / 1e6:
            found.append((row["message_bytes"], milliseconds))
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_every_operation_is_known_once(release: int, tmp_path: Path) -> None:
    program = """
        comm init new=0; allgather 4MB stream=1; broadcast 4KB stream=1; allreduce 1MB stream=1
        reducescatter 8KB stream=1
        group {
          send 8KB peer=OTHER stream=1; recv 8KB peer=OTHER stream=1; allgather 2MB stream=1; allreduce 4KB stream=1
        }
        alltoall 8KB stream=1
        sync stream=1
    """
    programs = {rank: program.replace("OTHER", str(1 - rank)) for rank in (0, 1)}
    if release < 22800:  # has no ncclAlltoAll
        programs = {rank: text.replace("alltoall 8KB stream=1", "") for rank, text in programs.items()}
    run = job(2, programs, tmp_path, nccl_version=release)
    assert clean(run)
    made = rows(run, "nccl_call", 0)
    assert len(own(run)) == len(made), "no operation stands there twice"
    tasks = rows(run, "nccl_task", 0)
    assert {t["call_id"] for t in tasks} <= {c["call_id"] for c in made}
    reported = {c["call_id"] for c in made} - {t["call_id"] for t in tasks}
    # From 2.29 on a broadcast has no task (NVIDIA/nccl issue 2278).
    broadcasts = {c["call_id"] for c in made if c["op_code"] == CollectiveOp.BROADCAST}
    assert reported == (broadcasts if release >= 22900 else set())
    by_call = {c["call_id"]: c["op_code"] for c in made}
    for task in tasks:
        split = by_call[task["call_id"]] == CollectiveOp.ALL_TO_ALL
        assert task["op_code"] == by_call[task["call_id"]] or (split and task["op_code"] in MESSAGES)
    assert all(row["device_end_ns"] >= row["device_begin_ns"] > 0 for row in own(run)), "events time them"
    assert {row["source_code"] for row in own(run)} == {CollectiveSource.EVENTS}


@pytest.mark.parametrize("release", RELEASES)
def test_messages_of_one_size_keep_their_peers(release: int, tmp_path: Path) -> None:
    exchange = "; ".join(f"send 8KB peer={peer} stream=1; recv 8KB peer={peer} stream=1" for peer in range(4))
    run = job(4, f"comm init new=0; group {{ {exchange} }}; sync stream=1", tmp_path, nccl_version=release)
    assert clean(run)
    peers = {c["call_id"]: c["peer_rank"] for c in rows(run, "nccl_call", 1)}
    # NCCL reports them in its rounds: rank 1 sends to the next ranks and receives from those before it.
    assert [peers[t["call_id"]] for t in rows(run, "nccl_task", 1)] == [1, 1, 2, 0, 3, 3, 0, 2]


@needs_stamps
@pytest.mark.parametrize("release", RELEASES)
def test_one_connection_has_the_stamps(release: int, tmp_path: Path) -> None:
    program = """
        comm init new=0; allgather 4MB stream=1; allreduce 1MB stream=1
        group { allreduce 2MB stream=1; allgather 8MB stream=1 }; sync stream=1
    """
    run = job(2, program, tmp_path, SCRIPT, nccl_version=release, env=ONE_CONNECTION)
    assert clean(run)
    assert [row["source_code"] for row in own(run)] == [CollectiveSource.PLUGIN] * 4
    assert all(row["device_begin_ns"] > 0 for row in own(run))
    assert misplaced(run) == []


@needs_stamps
@pytest.mark.parametrize("release", RELEASES)
def test_a_collective_inside_the_network_is_timed(release: int, tmp_path: Path) -> None:
    """Before 2.31 NCCL says that it has no channels."""
    program = "comm init new=0; allreduce 1MB stream=1; allreduce 4MB stream=1; sync stream=1; sleep 200ms"
    run = job(2, program, tmp_path, SCRIPT + "\nnccl.collnet 1", nccl_version=release, nccl_source="plugin")
    assert clean(run)
    assert [row["device_begin_ns"] > 0 for row in own(run)] == [True, True]
    assert misplaced(run) == []
    assert [(t["timed_count"], t["channels_count"]) for t in rows(run, "nccl_task", 0)] == [(2, 2)] * 2
    assert "untimed_operations" not in reasons(run)


@needs_stamps
@pytest.mark.parametrize("allowed", [True, False])
def test_stamps_end_where_a_ras_client_replaces_the_mask(allowed: bool, tmp_path: Path) -> None:
    """It takes channels out with the second operation and gives them back with the fourth: NCCL has counted wrong."""
    program = "comm init new=0; " + "allreduce 20MB stream=1; allreduce 2MB stream=1; sync stream=1; sleep 50ms; " * 3
    script = SCRIPT + ("\nnccl.ras 2" if allowed else "")
    run = job(2, program, tmp_path, script, nccl_version=23100, nccl_source="plugin")
    assert clean(run)
    assert misplaced(run) == []
    timed = [row["device_begin_ns"] > 0 for row in own(run)]
    assert timed == [True] + [not allowed] * 5
    assert reasons(run).get("stamps_overridden", 0) == 2 * allowed
    assert "untimed_operations" not in reasons(run)


GRAPH = """
    comm init new=0; allreduce 1MB stream=1; sync stream=1
    capture stream=1 graph=1 { allreduce 20MB stream=1 }
    repeat 2 { launch graph=1 stream=1; allreduce 5MB stream=1; allreduce 10MB stream=1 }
    sync stream=1; sleep 100ms
"""


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("source", ["auto", "plugin", "one connection"])
def test_recording_adds_nothing_to_a_graph(source: str, release: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"nccl_source": source} if source != "one connection" else {"env": ONE_CONNECTION}
    run = job(2, GRAPH, tmp_path, SCRIPT, nccl_version=release, **options)
    assert clean(run)
    assert calls(tmp_path / "job", "nccl").get("cudaLaunchHostFunc", 0) == 0
    assert misplaced(run) == []
    made = rows(run, "nccl_call", 0)
    assert len(own(run)) == len(made) == 6, "the capture is not a run of the graph"
    (captured,) = [c["call_id"] for c in made if c["nccl_flags"] & NcclFlag.CAPTURED]
    (task,) = [t for t in rows(run, "nccl_task", 0) if t["call_id"] == captured]
    assert not task["nccl_flags"] & NcclFlag.REPLAYED
    if source == "auto":
        assert "stamps_captured" not in reasons(run), "nobody asked for stamps"
    elif "shm_too_small" not in reasons(run):
        assert reasons(run)["stamps_captured"] == 2
        assert own(run)[0]["device_begin_ns"] > 0, "what was before it keeps its stamps"


def test_a_chained_plugin_keeps_what_it_asked_for(tmp_path: Path) -> None:
    library = other_plugin(5)
    alone = run_ranks(2, GRAPH, tmp_path / "alone", SCRIPT, traced=False, env={"NCCL_PROFILER_PLUGIN": str(library)})
    run = job(2, GRAPH, tmp_path, SCRIPT, env={"STASHTRACE_NCCL_CHAIN": str(library)}, nccl_source="plugin")
    assert [text.splitlines()[0] for text in run.stdout] == [text.splitlines()[0] for text in alone.stdout]
    added = [calls(tmp_path / name, "nccl")["cudaLaunchHostFunc"] for name in ("alone", "job")]
    assert added == [2, 2], "stamps in graphs are its wish, with and without us"
    assert misplaced(run) == []
    assert not any(t["timed_count"] for t in rows(run, "nccl_task", 0)[1:])


@pytest.mark.parametrize("release", RELEASES)
def test_replays_over_a_network_are_distinguished(release: int, tmp_path: Path) -> None:
    run = job(2, GRAPH, tmp_path, SCRIPT + "\nnccl.nodes 2", nccl_version=release)
    assert clean(run)
    # NCCL's proxies need its host function, with and without a recorder.
    assert calls(tmp_path / "job", "nccl")["cudaLaunchHostFunc"] == 2
    tasks = rows(run, "nccl_task", 0)
    assert sum(bool(t["nccl_flags"] & NcclFlag.REPLAYED) for t in tasks) == 2
    assert len(own(run)) == 6 + 2


@needs_stamps
@pytest.mark.parametrize("release", RELEASES)
def test_no_stamps_of_others_after_a_message_to_oneself(release: int, tmp_path: Path) -> None:
    program = """
        comm init new=0; allreduce 1MB stream=1; sync stream=1
        group { send 1MB peer=0 stream=1; recv 1MB peer=0 stream=1; send 1MB peer=1 stream=1; recv 1MB peer=1 stream=1 }
        sync stream=1
        repeat 3 { allreduce 5MB stream=1; sync stream=1; allreduce 20MB stream=1; sync stream=1 }
    """
    run = job(2, program, tmp_path, SCRIPT, nccl_version=release, nccl_source="plugin")
    assert clean(run)
    assert misplaced(run) == []
    first, *_, last = own(run)
    assert first["device_begin_ns"] > 0
    if release < 23100:
        assert reasons(run)["stamps_shifted"] == 2
        assert last["device_begin_ns"] == -1
    else:
        assert "stamps_shifted" not in reasons(run)
        assert last["device_begin_ns"] > 0


@needs_stamps
@pytest.mark.parametrize("release", [22902, 23100])
def test_no_stamps_of_others_after_a_broadcast(release: int, tmp_path: Path) -> None:
    program = """
        comm init new=0; allreduce 1MB stream=1; sync stream=1
        group { broadcast 1MB stream=1 root=0; broadcast 1MB stream=1 root=1 }; broadcast 1MB stream=1; sync stream=1
        repeat 3 { allreduce 5MB stream=1; sync stream=1; allreduce 20MB stream=1; sync stream=1 }
    """
    run = job(2, program, tmp_path, SCRIPT, nccl_version=release, nccl_source="plugin")
    assert clean(run)
    assert misplaced(run) == []
    assert own(run)[0]["device_begin_ns"] > 0
    assert own(run)[-1]["device_begin_ns"] == -1
    assert reasons(run)["stamps_shifted"] == 2


@pytest.mark.parametrize("chained", [False, True])
def test_sends_through_the_proxy_of_another_process(chained: bool, tmp_path: Path) -> None:
    env = {"STASHTRACE_NCCL_CHAIN": str(other_plugin(5))} if chained else {}
    program = "repeat 2 { allreduce 1MB stream=1 }; sync stream=1"
    run = job(2, program, tmp_path, "nccl.nodes 2\nnccl.steps 2\nnccl.pxn 1", env=env)
    assert clean(run)
    proxies = rows(run, "nccl_proxy", 0)
    assert sorted((r["is_send_code"], r["task_id"] > 0) for r in proxies) == [(0, True)] * 2 + [(1, False)] * 2
    assert {r["transfer_bytes"] for r in proxies} == {1_000_000}
    if chained:  # group and call, and the task; two proxy operations of two steps
        assert "other: " in run.stdout[0]
