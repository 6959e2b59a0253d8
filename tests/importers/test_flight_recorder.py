"""Dumps of torch's Flight Recorder: made by torch on CPU, and written here by its schema."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from importers.read_back import load, losses, said

import stashtrace
from stashtrace.errors import ImporterError, StashtraceError
from stashtrace.importers.flight_recorder.pickle import read_pickle
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource

T_NS = 1_724_779_239_000_000_000
MS = 1_000_000

_JOB = """
import json, os, sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + os.path.join(folder, "store"))
given = torch.ones(3, 4)
for _ in range(3):
    dist.all_reduce(given)
dist.barrier()
hangs = dist.all_reduce(given, async_op=True) if rank == 0 else None
limit = time.monotonic() + 60
while sum(e["retired"] for e in json.loads(c10d._dump_fr_trace_json(True))["entries"]) < 4 and time.monotonic() < limit:
    time.sleep(0.01)  # gloo's own thread marks what has ended
with open(os.path.join(folder, f"nccl_trace_rank_{rank}"), "wb") as out:
    out.write(c10d._dump_fr_trace())
with open(os.path.join(folder, f"json_rank_{rank}.json"), "w") as out:
    dumped = c10d._dump_fr_trace_json(True)
    out.write(dumped if isinstance(dumped, str) else dumped.decode())
open(os.path.join(folder, f"done_{rank}"), "w").close()
while not all(os.path.exists(os.path.join(folder, f"done_{r}")) for r in (0, 1)):
    time.sleep(0.01)
os._exit(0)  # the operation hangs, and what it needs to end must not decide over the test
"""


def _entry(number: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    called = T_NS + 10 * MS * number
    done = state == "completed"
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140631588866944",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": called,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": called + MS if state != "scheduled" else None,
        "time_discovered_completed_ns": called + 5 * MS if done else None,
        "retired": done,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
            {"name": "train", "filename": "train.py", "line": 41},
        ],
        **more,
    }


def _dump(entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries), "last_completed_collective": 1}},
        "entries": entries,
        **more,
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps that torch wrote while rank 1 had not yet joined an all-reduce of rank 0."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    jobs = [
        subprocess.Popen([sys.executable, "-c", _JOB, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for job in jobs:
        _, said = job.communicate(timeout=300)
        if b"has no attribute '_dump_fr_trace" in said:
            pytest.skip("this torch has no Flight Recorder for gloo")
        assert job.returncode == 0, said.decode()
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["nccl_trace_rank_{}", "json_rank_{}.json"])
def test_what_torch_writes(recorded: Path, tmp_path: Path, form: str) -> None:
    for rank in range(2):
        name = form.format(rank)
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    trace = load(tmp_path)
    rows = trace.collectives
    assert sorted(rows["rank"].tolist()) == [0] * 5 + [1] * 4
    of_zero = rows.take(rows["rank"] == 0).sort_by("sequence")
    assert of_zero["sequence"].tolist() == [1, 2, 3, 4, 5]
    assert of_zero["op_code"].tolist() == [CollectiveOp.ALL_REDUCE] * 3 + [
        CollectiveOp.BARRIER,
        CollectiveOp.ALL_REDUCE,
    ]
    assert of_zero["message_bytes"].tolist() == [48, 48, 48, 0, 48]
    assert of_zero["status_code"].tolist() == [2, 2, 2, 2, 3]
    assert of_zero["end_ns"].tolist()[-1] == -1
    assert (of_zero["end_ns"] >= of_zero["call_ns"]).tolist()[:4] == [True] * 4
    assert sorted(said(trace, "flight_recorder.unfinished")) == ["0", "1"]
    assert said(trace, "flight_recorder.unfinished_operation")[0].startswith("all_reduce 5 of default_pg")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_who_never_came_is_found(tmp_path: Path, protocol: int) -> None:
    zero = _dump([_entry(0), _entry(1), _entry(2, "started")])
    one = _dump([_entry(0), _entry(1, time_created_ns=T_NS + 12 * MS, time_discovered_completed_ns=T_NS + 16 * MS)])
    for rank, dump in enumerate((zero, one)):
        data = pickle.dumps(dump, protocol)
        (tmp_path / f"dump_{rank}").write_bytes(data if protocol else b"\x80\x02" + data)
    trace = load(tmp_path)
    assert trace.processes["rank"].tolist() == [0, 1]
    assert trace.processes["world_size"].tolist() == [2, 2]
    assert {trace.text(c) for c in trace.groups["members_code"]} == {"0,1"}
    assert trace.collectives["status_code"].tolist() == [2, 2, 2, 2, 3]
    assert said(trace, "flight_recorder.unfinished_operation") == [
        "all_reduce 3 of default_pg, called in train at train.py:41"
    ]
    rows = [r for r in stashtrace.analyze(trace, "collectives").rows() if r["sequence"] == 2]
    assert [(r["rank"], r["wait_ns"], r["last_rank"]) for r in rows] == [(0, 2 * MS, 1), (1, 0, -1)]


def test_durations_of_events_are_the_devices(tmp_path: Path) -> None:
    slow, fast = [_entry(0, duration_ms=3.5)], [_entry(0, duration_ms=0.25)]
    for rank, entries in enumerate((slow, fast)):
        (tmp_path / f"trace_rank_{rank}.json").write_text(json.dumps(_dump(entries)))
    trace = load(tmp_path)
    rows = trace.collectives
    assert rows["source_code"].tolist() == [CollectiveSource.EVENTS] * 2
    assert sorted((rows["device_end_ns"] - rows["device_begin_ns"]).tolist()) == [250_000, 3_500_000]
    found = stashtrace.analyze(trace, "collectives")
    # The ends were noticed by a polling thread: only durations can be compared.
    assert {(r["rank"], r["wait_ns"], r["transfer_ns"], r["method"]) for r in found.rows()} == {
        (0, 3_250_000, 250_000, "duration"),
        (1, 0, 250_000, "duration"),
    }


def test_messages_and_coalesced_parts_have_separate_numbers(tmp_path: Path) -> None:
    entries = [
        _entry(0),
        _entry(1, collective_seq_id=1, p2p_seq_id=1, profiling_name="nccl:send 0->1", is_p2p=True),
        _entry(2, collective_seq_id=2, profiling_name="nccl:reduce_scatter_tensor_coalesced"),
        _entry(3, collective_seq_id=2, profiling_name="nccl:reduce_scatter_tensor_coalesced"),
    ]
    (tmp_path / "r_0").write_bytes(pickle.dumps(_dump(entries), 2))
    trace = load(tmp_path)
    rows = trace.collectives
    keys = set(zip(rows["group_hash"].tolist(), rows["sequence"].tolist(), strict=True))
    assert len(keys) == 4
    sent = next(r for r in rows.rows() if r["op_code"] == CollectiveOp.SEND)
    assert (sent["sequence"], sent["peer_rank"]) == (1, 1)


class _Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_calls_is_refused_and_nothing_is_called(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "written"
    dump = _dump([_entry(0, frames=_Attack(target))])
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump, protocol))
    with pytest.raises(ImporterError, match="asks to run code"):
        stashtrace.load(path)
    assert not target.exists()


@pytest.mark.parametrize(
    "program", [b"\x80\x02\x82\x01.", b"\x80\x02Ppg_config\n.", b"\x80\x02(ios\nsystem\n.", b"\x80\x04]\x93."]
)
def test_every_way_to_call_is_closed(program: bytes) -> None:
    with pytest.raises(ImporterError, match="asks to run code"):
        read_pickle(program, "file")


@pytest.mark.parametrize("program", [b"\x80\x02", b"\x80\x02a.", b"\x80\x02K", b"\x80\x02h\x07."])
def test_a_pickle_of_nothing_is_refused(program: bytes) -> None:
    with pytest.raises(ImporterError, match="not a pickle"):
        read_pickle(program, "file")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_cut_dump_gives_its_whole_entries(tmp_path: Path, form: str, share: float) -> None:
    dump = _dump([])
    del dump["entries"]
    entries = [_entry(n) for n in range(20)]
    whole = {"entries": entries, **dump} if form == "json" else {**dump, "entries": entries}
    data = json.dumps(whole).encode() if form == "json" else pickle.dumps(copy.deepcopy(whole), 2)
    path = tmp_path / ("trace_rank_3.json" if form == "json" else "trace_rank_3")
    path.write_bytes(data[: int(len(data) * share)])
    trace = load(path)
    count = len(trace.collectives)
    assert 20 * share - 8 <= count <= 20
    assert trace.collectives["sequence"].tolist() == list(range(1, count + 1))
    assert losses(trace)["file_cut"] == 1
    assert trace.processes["rank"].tolist() == [3]


def test_old_and_unknown_versions(tmp_path: Path) -> None:
    old = {k: v for k, v in _entry(0).items() if k not in ("process_group", "collective_seq_id", "input_dtypes")}
    old.update(seq_id=4, pg_id=2)
    (tmp_path / "old_0").write_bytes(pickle.dumps({"version": "1.1", "entries": [old], "pg_config": {}}, 2))
    trace = load(tmp_path / "old_0")
    assert trace.collectives["sequence"].tolist() == [4]
    assert [trace.text(c) for c in trace.groups["name_code"]] == ["group 2"]
    (tmp_path / "new_0").write_bytes(pickle.dumps(_dump([_entry(0), {"later": 1}], version="7.0"), 2))
    trace = load(tmp_path / "new_0")
    lost = losses(trace)
    assert lost["newer_schema"] == 1
    assert lost["damaged_entries"] == 1


def test_ring_and_missing_rank_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(_dump([_entry(40), _entry(41)]), 2))
    lost = losses(load(path))
    assert lost["ring_overwritten"] == 40
    assert lost["rank_unknown"] == 1


@pytest.mark.parametrize("content", [b"\x80\x02]U\x09pg_configa.", b'{"pg_config": {}, "pg_status": {}}'])
def test_what_is_no_dump_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(ImporterError, match=r"not a dump|no operation"):
        stashtrace.load(path)


def test_damage_anywhere_costs_no_more_than_a_refusal(tmp_path: Path) -> None:
    rng = random.Random(7)
    path = tmp_path / "nccl_trace_rank_0"
    forms = [
        pickle.dumps(_dump([_entry(n) for n in range(5)]), 2),
        json.dumps(_dump([_entry(n) for n in range(5)])).encode(),
    ]
    used = lines = 0
    for _ in range(150):
        data = bytearray(rng.choice(forms))
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            used += len(load(path).collectives) > 0
        except StashtraceError as error:
            lines = max(lines, str(error).count("\n"))
    assert used > 30
    assert lines == 0


def test_the_rank_that_never_entered_the_last_operation_is_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        entries = [_entry(number) for number in range(3)] + ([_entry(3, "started")] if rank == 0 else [])
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(_dump(entries)))
    trace = load(tmp_path)
    row = next(stashtrace.analyze(trace, "late").rows())
    assert (row["late_rank"], row["waiting_ranks"], row["method"], row["cause_kind"]) == (1, "0", "hung", "unknown")
    assert stashtrace.analyze(trace, "collectives")["last_rank"][-1] == 1
