"""Python stacks that are sampled from outside: what becomes of py-spy's events, and why there may be none."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stashtrace.files.run_facts import STACKS, valid_facts
from stashtrace.record.peek import stack_samples, stacks
from stashtrace.record.peek.stack_samples import StackSampler

#: As py-spy 0.4 answers: `dump --json` a list of threads (src/stack_trace.rs), `record --format chrometrace` a list of
#: events with microseconds since its start, written at SIGINT (src/chrometrace.rs, src/main.rs).
FAKE = """#!/bin/sh
exec {python} -c '
import json, os, signal, sys
words = sys.argv[1:]
pid = int(words[words.index("--pid") + 1])
if words[0] == "dump":
    print(json.dumps([{{"os_thread_id": pid, "thread_id": 140, "thread_name": "MainThread", "owns_gil": True,
                        "frames": []}}]))
    sys.exit()
def end(*_):
    def event(kind, name, line, at_us, thread=140):
        return {{"args": {{"filename": "/job/train.py", "line": line}}, "cat": "py-spy", "name": name, "ph": kind,
                 "pid": pid, "tid": thread, "ts": at_us}}
    told = [event("B", "main", 9, 1000), event("B", "fetch", 41, 1000), event("E", "fetch", 41, 31000),
            event("B", "step", 50, 31000), event("E", "step", 50, 51000), event("E", "main", 9, 51000),
            event("B", "unknown", 1, 1000, thread=7), event("E", "unknown", 1, 2000, thread=7)]
    with open(words[words.index("--output") + 1], "w") as file:
        json.dump(told, file)
    os._exit(0)
signal.signal(signal.SIGINT, end)
print("ready", file=sys.stderr, flush=True)
signal.pause()
' "$@"
"""


def put(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "py-spy"
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    for module in (stacks, stack_samples):
        monkeypatch.setattr(module, "find_program", lambda: str(script))


def test_functions_have_their_thread_and_place_and_lie_on_our_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, FAKE.format(python=shlex.quote(sys.executable)), monkeypatch)
    sampler, pid = StackSampler("here"), os.getpid()
    before_ns = time.monotonic_ns()
    sampler.start({3: (pid, 17)})
    after_ns = time.monotonic_ns()
    time.sleep(1.0)  # it takes the signal only once it has begun
    (reported,) = sampler.finish()
    assert sampler.unseen == {}
    assert (reported["host"], reported["pid"], reported["dropped_count"]) == ("here", 17, 0)
    by_name = {reported["functions"][row[3]]: row for row in reported["rows"]}
    assert list(by_name) == ["fetch at /job/train.py", "step at /job/train.py", "main at /job/train.py"]
    fetch, main = by_name["fetch at /job/train.py"], by_name["main at /job/train.py"]
    assert (fetch[0], fetch[4], fetch[5], main[5]) == (pid, 41, 1, 0)
    assert before_ns + 1_000_000 <= fetch[1] <= after_ns + 1_000_000
    assert fetch[2] - fetch[1] == 30_000_000
    assert valid_facts({STACKS: [reported]}) == {STACKS: [reported]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\necho 'Permission denied (os error 13)' >&2; exit 1\n", "may not read the memory"),
        ("#!/bin/sh\necho 'Error: Failed to find python version' >&2; exit 1\n", "py-spy: Failed to find python"),
        ("#!/nowhere/python\n", "cannot be started"),
        ('#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done; echo nonsense > "$2"\n', "makes no sense"),
    ],
)
def test_why_a_rank_has_no_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str) -> None:
    put(tmp_path, text, monkeypatch)
    monkeypatch.setattr(stacks, "_TRIES", 1)
    sampler = StackSampler("here")
    sampler.start({0: (os.getpid(), os.getpid())})
    time.sleep(0.5)
    assert sampler.finish() == []
    assert why in sampler.unseen[0]


def test_without_the_program_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_samples, "find_program", lambda: None)
    sampler = StackSampler("here")
    sampler.start({0: (1, 1), 1: (2, 2)})
    assert sampler.finish() == []
    assert set(sampler.unseen.values()) == {"py-spy is not installed (pip install 'stashtrace[stacks]')"}


@pytest.mark.skipif(stacks.find_program() is None, reason="needs py-spy")
def test_a_real_process() -> None:
    """It is in one function for most of its time, and in another for the rest."""
    code = "import time\ndef long(): time.sleep(0.3)\ndef short(): time.sleep(0.05)\nwhile True:\n  long()\n  short()"
    with subprocess.Popen([sys.executable, "-c", code]) as job:
        try:
            time.sleep(0.5)
            sampler = StackSampler("here")
            sampler.start({0: (job.pid, job.pid)})
            time.sleep(2.5)
            (reported,) = sampler.finish()
        finally:
            job.kill()
    spent = dict.fromkeys(reported["functions"], 0)
    for _, begin, end, function, _, _ in reported["rows"]:
        spent[reported["functions"][function]] += end - begin
    assert {row[0] for row in reported["rows"]} == {job.pid}
    assert spent["long at <string>"] > 2 * spent["short at <string>"] > 0


@pytest.mark.parametrize(
    "rows", [[[1, 2, 3, 0, 5]], [[1, 2, 3, 1, 5, 0]], [[1, -2, 3, 0, 5, 0]], [["1", 2, 3, 0, 5, 0]], "rows"]
)
def test_damaged_facts_are_not_taken(rows: object) -> None:
    reported = {"host": "here", "pid": 1, "functions": ["f"], "rows": rows}
    assert valid_facts({STACKS: [reported]}) == {}
