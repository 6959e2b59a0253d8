"""Several launchers in one run directory: who may join, who merges, what run.json says in the end."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from stashtrace.errors import CaptureError
from stashtrace.record.directory import claim_run_file, holds_other_run, prepare_directory, read_run_file
from stashtrace.record.launchers import (
    Job,
    all_ended,
    announce,
    end_turns,
    folded,
    launchers,
    merging_turn,
    own_place,
    say,
    still_running,
)

JOB = Job("aaaa0000aaaa0000", "slurm-7.0", 2)
MEETING = Job("aaaa0000aaaa0000", "torchrun-j7", 2, unique=False)


def facts(host: str, pid: int = 1, begin: int = 0, **more: Any) -> dict[str, Any]:
    return {"run_id": JOB.run_id, "host": host, "launcher_pid": pid, "begin_realtime_ns": begin, "place": host, **more}


def test_the_first_makes_the_directory_and_the_second_joins(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    one = prepare_directory(out, job=JOB)
    assert claim_run_file(one, facts("node0"))
    two = prepare_directory(out, job=JOB)
    assert two == one
    assert not claim_run_file(two, facts("node1"))
    assert read_run_file(one)["host"] == "node0"
    assert [path.name for path in one.iterdir()] == ["run.json"], "nothing half-written is left"


@pytest.mark.parametrize("job", [None, Job("bbbb", "slurm-8.0", 2), Job("bbbb")])
def test_another_run_does_not(tmp_path: Path, job: Job | None) -> None:
    claim_run_file(prepare_directory(str(tmp_path), job=JOB), facts("node0"))
    with pytest.raises(CaptureError, match="already holds a run") as caught:
        prepare_directory(str(tmp_path), job=job)
    assert ("--run-id" in str(caught.value.hint)) == (job is not None and not job.name)


def test_two_runs_that_begin_at_the_same_moment(tmp_path: Path) -> None:
    """Both have found the directory empty; the one that is later with run.json is refused."""
    claim_run_file(tmp_path, facts("node0"))
    with pytest.raises(CaptureError, match="already holds a run"):
        claim_run_file(tmp_path, facts("node1") | {"run_id": "bbbb"})


def test_a_rendezvous_may_be_used_again(tmp_path: Path) -> None:
    """Its name is not proof: when all have ended, the next run of this name is another one."""
    claim_run_file(tmp_path, facts("node0"))
    files = [announce(tmp_path, facts(host)) for host in ("node0", "node1")]
    say(files[0], facts("node0", exit_code=0))
    assert not holds_other_run(tmp_path, MEETING)
    say(files[1], facts("node1", exit_code=1))
    assert holds_other_run(tmp_path, MEETING)
    assert not holds_other_run(tmp_path, JOB), "a name that is never given again may come back after a failure"


def test_the_default_directory_is_named_after_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = prepare_directory(None, job=MEETING)
    assert first.name == "stash-torchrun-j7"
    claim_run_file(first, facts("node0"))
    file = announce(first, facts("node0"))
    assert prepare_directory(None, job=MEETING) == first
    say(file, facts("node0", exit_code=0))
    say(announce(first, facts("node1")), facts("node1", exit_code=0))
    assert prepare_directory(None, job=MEETING).name == "stash-torchrun-j7-2"


def test_launchers_of_one_name_keep_apart(tmp_path: Path) -> None:
    """Containers may have one host name, and each a process 1."""
    files = {announce(tmp_path, facts("node0")) for _ in range(3)}
    assert len(files) == 3
    assert len(launchers(tmp_path)) == 3


def test_who_still_runs(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    announce(tmp_path, facts("here", os.getpid()) | {"place": own_place()})
    announce(tmp_path, facts("here", gone.pid) | {"place": own_place()})
    announce(tmp_path, facts("elsewhere", gone.pid))
    ended = announce(tmp_path, facts("node3"))
    say(ended, facts("node3", exit_code=0))
    (tmp_path / "launch.node4.1.json").write_text('{"host": "no')  # being written
    assert {(f["host"], f["launcher_pid"]) for f in still_running(tmp_path)} == {
        ("here", os.getpid()),
        ("elsewhere", gone.pid),
    }
    assert not all_ended(tmp_path)


def test_all_have_ended_when_as_many_as_the_job_has(tmp_path: Path) -> None:
    say(announce(tmp_path, facts("node0")), facts("node0", exit_code=0))
    assert all_ended(tmp_path)
    assert not all_ended(tmp_path, 2), "the late one must not be lost"


def test_one_merges_at_a_time(tmp_path: Path) -> None:
    with merging_turn(tmp_path) as first:
        with merging_turn(tmp_path) as second:
            assert (first, second) == (True, False)
        with merging_turn(tmp_path) as third:
            assert not third, "the turn is still the first's"
    with merging_turn(tmp_path) as again:
        assert again
        end_turns(tmp_path)  # by hand, after a launcher died in its turn
        with merging_turn(tmp_path) as taken:
            assert taken


def test_the_words_of_all_launchers_in_one(tmp_path: Path) -> None:
    begin = time.time_ns()
    run = {"run_id": "a", "begin_realtime_ns": begin, "begin_monotonic_ns": 5, "exit_code": 0}
    two = [
        facts("node0", 1, begin, exit_code=0, signal=0, end_realtime_ns=begin + 50),
        facts("node1", 1, begin, exit_code=137, signal=9, end_realtime_ns=begin + 40),
    ]
    whole = folded(run, two)
    assert (whole["exit_code"], whole["signal"], whole["end_monotonic_ns"]) == (137, 9, 55)
    assert [part["host"] for part in whole["parts"]] == ["node0", "node1"]
    assert "exit_code" not in folded(run, [two[0], facts("node1")]), "one has not ended, and none failed"
    assert folded(run, [facts("node0"), two[1]])["exit_code"] == 137
