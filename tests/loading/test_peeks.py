"""Looks at the processes of a run: taken while they live, and kept among the facts of the run afterwards."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from builders import MS, S, TraceBuilder
from stack_rows import FORKED, sample, stack_of
from stash_files import StashWriter, write_run_json

from stashtrace.analysis.findings.ending.hang_table import hang
from stashtrace.analysis.findings.ending.looked import peeks
from stashtrace.files.run_facts import PEEKS, valid_facts
from stashtrace.loading.gather import gather
from stashtrace.loading.load import load_trace
from stashtrace.loading.peeks import facts_of_peeks, frames_of, newest_stack, peek_at, with_own_stack
from stashtrace.record.directory import read_run_file, update_host_facts, write_run_file
from stashtrace.record.peek.model import ELSEWHERE, Peek, ThreadPeek
from stashtrace.record.peek.proc import STACK_NOT_READ
from stashtrace.schema.kinds import StackFlag, TrackKind


def run_of_two(folder: Path) -> Path:
    for rank in (0, 1):
        StashWriter(folder, pid=100 + rank, env={"RANK": str(rank), "WORLD_SIZE": "2"}).save()
    write_run_json(folder)
    return folder


def test_processes_of_another_boot_are_not_looked_at_and_it_is_said(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path / "run")
    trace = load_trace(folder)
    found = peeks(peek_at(trace, str(folder), {0: 100, 7: 1}, window_s=0.0))
    assert set(found) == {0}
    assert found[0].state == ELSEWHERE
    assert found[0].unseen[0].startswith("it runs on node01, and this was asked on ")


def test_a_look_outlives_the_process_in_the_facts_of_the_run(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path / "run")
    peek = Peek(4711, 9, 4, "S", ThreadPeek(101, "MainThread", "S", 5, "read", "/data/shard-0017.tar"))
    reported = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    reported[PEEKS] = [
        {"host": "node01", "pid": 101, "look": peek.to_text()},
        {"host": "node02", "pid": 101, "look": peek.to_text()},
    ]
    (folder / "run.json").write_text(json.dumps(reported), encoding="utf-8")
    trace = load_trace(folder)
    rank = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    assert {rank[process]: found for process, found in peeks(trace).items()} == {1: peek}
    assert facts_of_peeks(trace) == reported[PEEKS][:1]


def test_hosts_that_look_at_the_same_time(tmp_path: Path) -> None:
    """Each follower has a separate file, also while the launcher replaces the facts of the run: no peek is lost."""
    folder, hosts = tmp_path / "run", ("node01", "node02")
    for rank, host in enumerate(hosts):
        StashWriter(folder, host=host, pid=101, env={"RANK": str(rank), "WORLD_SIZE": "2"}).save()
    write_run_json(folder)

    def peek(host: str) -> None:
        for at in range(200):
            text = Peek(101, at, 4, "S", ThreadPeek(101, host, "S")).to_text()
            update_host_facts(folder, host, {PEEKS: [{"host": host, "pid": 101, "look": text}]})
            write_run_file(folder, read_run_file(folder))

    threads = [threading.Thread(target=peek, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = load_trace(folder)
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    seen = {rank_of[process]: peek for process, peek in peeks(trace).items()}
    assert {rank: (one.at_ns, one.thread.name) for rank, one in seen.items() if one.thread is not None} == {
        0: (199, "node01"),
        1: (199, "node02"),
    }
    copied = tmp_path / "copied"
    gather(copied, [folder], lambda text: None)
    assert len(peeks(load_trace(copied))) == 2, "a merge into another directory takes them along"


def test_a_damaged_file_of_a_host_is_left_out(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path / "run")
    for number, text in enumerate(("{", "[1]", '{"looks": 3, "window_steps": [1]}', '{"window_steps": ["x", "4 0"]}')):
        (folder / f"host.{number}.json").write_text(text)
    assert peeks(load_trace(folder)) == {}


def test_damaged_looks_are_left_out() -> None:
    for damaged in ("x", [1], [{"host": "a", "pid": "b", "look": ""}], [{"host": "a"}]):
        assert valid_facts({PEEKS: damaged, "host": "a"}) == {"host": "a"}


MAIN, WAIT = "main /jobs/train.py:23", "fetch /jobs/train.py:41"


def tid_of(build: TraceBuilder, rank: int) -> int:
    tracks = build.trace().tracks
    return int(tracks["native_id"][tracks["track_id"] == build.rank(rank).track_id][0])


def test_the_newest_readable_sample_counts() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    sample(rank, 1 * S, stack_of(rank, MAIN, WAIT))
    sample(rank, 2 * S, stack_of(rank, MAIN))
    sample(rank, 3 * S, 0)
    trace, tid = build.trace(), tid_of(build, 0)
    assert newest_stack(trace, rank.process_id, tid) == ("main at /jobs/train.py:23",)
    assert newest_stack(trace, rank.process_id, tid, since_ns=2 * S + 1) == ()
    assert newest_stack(trace, rank.process_id, tid + 1) == ()
    assert frames_of(trace, rank.process_id, 10**6) == ()


def test_a_look_without_a_stack_takes_that_of_the_process_and_says_nothing_of_another_program() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    sample(rank, S, stack_of(rank, MAIN, WAIT))
    look = Peek(
        4711, S, S, "S", ThreadPeek(tid_of(build, 0), "MainThread", "S"), unseen=(f"{STACK_NOT_READ}: why", "x")
    )
    found = with_own_stack(build.trace(), rank.process_id, look)
    assert found.thread.place == "fetch at /jobs/train.py:41"
    assert found.unseen == ("x",)
    nothing = with_own_stack(TraceBuilder().trace(), 0, look)
    assert nothing.unseen == (f"{STACK_NOT_READ}: why; none was recorded", "x")
    read = Peek(4711, S, S, "S", ThreadPeek(1, "MainThread", frames=("read at /jobs/a.py:1",)))
    assert with_own_stack(build.trace(), rank.process_id, read) is read


@pytest.mark.parametrize(("flags", "held"), [(int(StackFlag.HOLDS_GIL), True), (0, False)])
def test_the_thread_that_holds_the_gil_is_named_by_its_samples(flags: int, held: bool) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    other = build.track(rank.process_id, 77, "Thread-1 (compress)")
    for number in range(10):
        sample(rank, S + 20 * number * MS, stack_of(rank, MAIN))
        sample(rank, S + 20 * number * MS + 1, stack_of(rank, "compress /jobs/data.py:7"), track_id=other, flags=flags)
    look = Peek(4711, S, S, "S", ThreadPeek(tid_of(build, 0), "MainThread", "S"))
    holder = with_own_stack(build.trace(), rank.process_id, look).holder
    assert (holder is not None) is held
    if holder is not None:
        assert (holder.tid, holder.name, holder.place) == (77, "Thread-1 (compress)", "compress at /jobs/data.py:7")
    # Both have it alternately: nobody is kept from running.
    sample(rank, S + 200 * MS, stack_of(rank, MAIN), flags=StackFlag.HOLDS_GIL)
    assert with_own_stack(build.trace(), rank.process_id, look).holder is None


def test_a_worker_is_where_its_loop_makes_batches_and_not_where_it_was_forked() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    idle, busy = stack_of(rank, *FORKED[:4]), stack_of(rank, *FORKED, "Pipe.__getitem__ /jobs/data.py:9")
    trace = build.trace()
    assert ThreadPeek(1, "", frames=frames_of(trace, rank.process_id, idle)).own_place == ""
    place = ThreadPeek(1, "", frames=frames_of(trace, rank.process_id, busy)).own_place
    assert place == "Pipe.__getitem__ at /jobs/data.py:9"


def test_a_job_that_was_killed_while_it_stood_still_is_named_by_line() -> None:
    build = TraceBuilder()
    build.group(range(2))
    for step in range(3):
        build.collective(dict.fromkeys(range(2), (step * 10 * MS, step * 10 * MS + MS)))
    build.collective({0: (40 * MS, -1, -1)})
    late = build.rank(1)
    late.phase("forward", 30 * MS, 35 * MS)
    for second in range(1, 30):
        sample(late, second * S, stack_of(late, MAIN, WAIT))
    track = build.track(late.process_id, tid_of(build, 1), "thread_run_ns_total", kind=TrackKind.COUNTER, unit="ns")
    for second in range(1, 31):
        build.add("counters", ts_ns=second * S, track_id=track, value=5e9)
    build.counter(0, "process_user_ns_total", {30 * S: 1.0})
    (row,) = hang(build.trace()).rows()
    assert row["rank"] == 1
    assert row["place"] == "fetch at /jobs/train.py:41"
