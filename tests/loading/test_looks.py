"""Looks at the processes of a run: taken while they live, and kept among the facts of the run afterwards."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

from stash_files import StashWriter, write_run_json

from stashtrace.analysis.findings.ending.looked import looks
from stashtrace.loading.load import load_trace
from stashtrace.loading.looks import facts_of_looks, look_at
from stashtrace.record.look.model import ELSEWHERE, Look, ThreadLook
from stashtrace.run_facts import LOOKS, valid_facts


def run_of_two(folder: Path) -> Path:
    for rank in (0, 1):
        StashWriter(folder, pid=100 + rank, env={"RANK": str(rank), "WORLD_SIZE": "2"}).save()
    write_run_json(folder)
    return folder


def test_processes_of_another_boot_are_not_looked_at_and_it_is_said(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path / "run")
    trace = load_trace(folder)
    found = looks(look_at(trace, str(folder), {0: 100, 7: 1}, window_s=0.0))
    assert set(found) == {0}
    assert found[0].state == ELSEWHERE
    assert found[0].unseen[0].startswith("it runs on node01, and this was asked on ")


def test_a_look_outlives_the_process_in_the_facts_of_the_run(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path / "run")
    look = Look(4711, 9, 4, "S", ThreadLook(101, "MainThread", "S", 5, "read", "/data/shard-0017.tar"))
    told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    told[LOOKS] = [
        {"host": "node01", "pid": 101, "look": look.to_text()},
        {"host": "node02", "pid": 101, "look": look.to_text()},
    ]
    (folder / "run.json").write_text(json.dumps(told), encoding="utf-8")
    trace = load_trace(folder)
    rank = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    assert {rank[process]: found for process, found in looks(trace).items()} == {1: look}
    assert facts_of_looks(trace) == told[LOOKS][:1]


def test_damaged_looks_are_left_out() -> None:
    for damaged in ("x", [1], [{"host": "a", "pid": "b", "look": ""}], [{"host": "a"}]):
        assert valid_facts({LOOKS: damaged, "host": "a"}) == {"host": "a"}
