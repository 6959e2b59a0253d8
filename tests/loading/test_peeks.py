"""Looks at the processes of a run: taken while they live, and kept among the facts of the run afterwards."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import threading
from pathlib import Path

from stash_files import StashWriter, write_run_json

from stashtrace.analysis.findings.ending.looked import peeks
from stashtrace.files.run_facts import PEEKS, valid_facts
from stashtrace.loading.gather import gather
from stashtrace.loading.load import load_trace
from stashtrace.loading.peeks import facts_of_peeks, peek_at
from stashtrace.record.directory import read_run_file, update_host_facts, write_run_file
from stashtrace.record.peek.model import ELSEWHERE, Peek, ThreadPeek


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
    told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    told[PEEKS] = [
        {"host": "node01", "pid": 101, "look": peek.to_text()},
        {"host": "node02", "pid": 101, "look": peek.to_text()},
    ]
    (folder / "run.json").write_text(json.dumps(told), encoding="utf-8")
    trace = load_trace(folder)
    rank = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    assert {rank[process]: found for process, found in peeks(trace).items()} == {1: peek}
    assert facts_of_peeks(trace) == told[PEEKS][:1]


def test_hosts_that_look_at_the_same_time(tmp_path: Path) -> None:
    """Each follower has a file of its own, also while the launcher replaces the facts of the run: no peek is lost."""
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
