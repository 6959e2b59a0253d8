"""What a command saw of a stuck job is kept in its run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from made_job import write_job

from stashtrace.cli.commands.analyze import peek_if_stuck
from stashtrace.loading.load import load_trace
from stashtrace.loading.peeks import with_peeks
from stashtrace.record.peek.model import Peek, ThreadPeek
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary


def test_what_was_seen_of_a_stuck_job_is_in_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job(tmp_path, steps_count=60, dead=[(1, 50)], waits=True)
    run = tmp_path / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "exit_code": 1}))
    in_lock = "waiting for a lock, a condition or another thread, in take (/job/train.py:7)"
    assert in_lock not in " ".join(summary(load_trace(tmp_path)).split())

    def peek_at(trace: Trace, path: str, wanted: dict[int, int], run_id: str | None = None) -> Trace:
        thread = ThreadPeek(1, "MainThread", "S", 5, "futex", frames=("take at /job/train.py:7",))
        asleep = Peek(1, 1 << 60, 10**9, "S", thread, thread_ran_ns=0, others_ran_ns=0, moved_bytes=0)
        return with_peeks(trace, dict.fromkeys(wanted, asleep.to_text()))

    monkeypatch.setattr("stashtrace.loading.peeks.peek_at", peek_at)
    monkeypatch.setattr("stashtrace.cli.commands.analyze._lives", lambda paths, run_id: True)
    monkeypatch.setattr("socket.gethostname", lambda: os.uname().nodename)
    peek_if_stuck(load_trace(tmp_path), [str(tmp_path)], None)
    assert in_lock in " ".join(summary(load_trace(tmp_path)).split())
