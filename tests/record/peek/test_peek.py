"""A peek at small processes whose state is known: where their thread stands, and whether they got on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from other_users import as_another_user, needs_root

from stashtrace.record.peek import stacks
from stashtrace.record.peek.model import LEAST_BYTES_PER_S, MOVES, OTHERS_RUN, RUNS, Peek, ThreadPeek, way_of_progress
from stashtrace.record.peek.proc import Wanted, calls_of, take_peeks

ROOT = Path(__file__).resolve().parents[3]
WINDOW_S = 0.4


@contextmanager
def program(code: str, *arguments: str) -> Iterator[int]:
    """Run a Python program until it has said that it begins; its pid."""
    begins = "import os, sys, time\nsys.stdout.write('.'); sys.stdout.flush()\n"
    with subprocess.Popen([sys.executable, "-c", begins + code, *arguments], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"."
        time.sleep(0.3)
        try:
            yield child.pid
        finally:
            child.kill()


def peek_at(pid: int, *, reads_stacks: bool = False) -> Peek:
    return take_peeks({0: Wanted(pid, pid, reads_stacks)}, WINDOW_S)[0]


def test_a_read_that_does_not_return(tmp_path: Path) -> None:
    fifo = tmp_path / "queue.fifo"
    os.mkfifo(fifo)
    with program("os.read(os.open(sys.argv[1], os.O_RDWR), 1)", str(fifo)) as pid:
        peek = peek_at(pid)
    assert peek.thread is not None
    assert (peek.state, peek.thread.call, peek.thread.target) == ("S", "read", str(fifo))
    assert way_of_progress(*peek.progress()) == ""


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("time.sleep(60)", "sleep"),
        ("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", "futex"),
        ("import select; select.poll().poll()", "poll"),
        ("import socket; here, there = socket.socketpair(); here.recv(1)", "recv"),
    ],
)
def test_the_call_that_a_thread_stands_in(code: str, call: str) -> None:
    with program(code) as pid:
        peek = peek_at(pid)
    assert peek.thread is not None
    assert peek.thread.call == call
    assert way_of_progress(*peek.progress()) == ""


def test_a_process_that_is_stopped() -> None:
    with program("time.sleep(60)") as pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        peek = peek_at(pid)
    assert peek.state == "T"
    assert way_of_progress(*peek.progress()) == ""


def test_a_process_that_has_ended() -> None:
    with program("time.sleep(60)") as pid:
        pass
    peek = peek_at(pid)
    assert (peek.state, peek.thread) == ("", None)
    assert way_of_progress(*peek.progress()) == ""


def test_a_child_that_it_waits_for_and_one_that_ended() -> None:
    with program("import subprocess; subprocess.run(['sleep', '60'])") as pid:
        peek = peek_at(pid)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGKILL)
    assert peek.thread is not None
    assert (peek.thread.call, peek.thread.target) == ("wait", "sleep")
    assert peek.ended_children == ()
    with program("os.fork() or os._exit(3); time.sleep(60)") as pid:
        assert len(peek_at(pid).ended_children) == 1


def test_work_of_the_thread_of_another_thread_and_of_a_child_is_progress() -> None:
    spin = "while True: pass"
    another = f"import threading; threading.Thread(target=lambda: exec('{spin}'), daemon=True).start(); time.sleep(60)"
    child = f"import subprocess; subprocess.run([sys.executable, '-c', '{spin}'])"
    for code, way in ((spin, RUNS), (another, OTHERS_RUN), (child, OTHERS_RUN)):
        with program(code) as pid:
            # In one peek a busy machine may give it no time, or it may be importing still.
            seen = any(way_of_progress(*peek_at(pid).progress()) == way for _ in range(20))
            for below in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
                os.kill(int(below), signal.SIGKILL)
        assert seen, code


def test_bytes_and_messages_are_progress(tmp_path: Path) -> None:
    writes = "out = open(sys.argv[1], 'wb')\nwhile True:\n    out.write(bytes(1 << 21)); out.flush(); time.sleep(0.1)"
    with program(writes, str(tmp_path / "model.pt")) as pid:
        peek = peek_at(pid)
    assert peek.moved_bytes >= LEAST_BYTES_PER_S * WINDOW_S
    assert way_of_progress(*peek.progress()) == MOVES
    receives = (
        "import socket, threading\nhere, there = socket.socketpair()\n"
        "def send():\n    while True:\n        there.sendall(bytes(1 << 12)); time.sleep(0.02)\n"
        "threading.Thread(target=send, daemon=True).start()\nwhile True: here.recv(1 << 16)"
    )
    with program(receives) as pid:
        assert way_of_progress(*peek_at(pid).progress()) != ""


def test_what_the_recorder_does_is_no_progress() -> None:
    """Its thread copies stacks to a file in memory, and takes CPU time, in each worker of a rank that stands still."""
    works = (
        "import ctypes, threading\n"
        "def sample():\n"
        "    ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)  # PR_SET_NAME\n"
        "    copy = os.memfd_create('stacks')\n"
        "    while True: os.pwrite(copy, bytes(1 << 21), 0)\n"
        "threading.Thread(target=sample, daemon=True).start()\n"
        "time.sleep(60)"
    )
    for name, expected in (("stashtrace proc", ""), ("writer", MOVES)):
        with program(works, name) as pid:
            wait_until_named(pid, name)
            peek = peek_at(pid)
        assert way_of_progress(*peek.progress()) == expected, peek


def wait_until_named(pid: int, name: str) -> None:
    end = time.monotonic() + 60
    while name not in {file.read_text().strip() for file in Path(f"/proc/{pid}/task").glob("*/comm")}:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_cpu_time_of_who_holds_the_gil_is_no_progress() -> None:
    thread = ThreadPeek(7, "logger", frames=("flush at train.py:3",))
    peek = Peek(7, 2_000, 1_000, "S", thread_ran_ns=0, others_ran_ns=900)
    assert way_of_progress(*peek.progress()) == OTHERS_RUN
    held = Peek(7, 2_000, 1_000, "S", holder=thread, thread_ran_ns=0, others_ran_ns=900)
    assert way_of_progress(*held.progress()) == ""


def test_a_look_as_text() -> None:
    thread = ThreadPeek(12, "MainThread", "S", 5, "read", "/data/a b", "pipe_read", ("f at /x/train.py:3",))
    peek = Peek(11, 9, 4, "S", thread, thread, 1, 2, 3, 4, ("cc1",), ("no stack",))
    assert Peek.from_text(peek.to_text()) == peek
    assert Peek.from_text(Peek(11, 9, 0, "").to_text()) == Peek(11, 9, 0, "")
    for damaged in ("", "{", "[]", '{"pid": "x"}', '{"pid": 1, "at_ns": 2, "window_ns": 3, "state": 4}'):
        assert Peek.from_text(damaged) is None


def test_the_place_is_the_innermost_line_of_the_jobs_code() -> None:
    library, own = "wait at /usr/lib/python3.11/threading.py:327", "fetch at /job/train.py:41"
    assert ThreadPeek(1, "", frames=(library, own, "main at /job/train.py:90")).place == own
    assert ThreadPeek(1, "", frames=(library,)).place == library
    assert ThreadPeek(1, "").place == ""


def test_names_of_calls_are_those_of_the_recorder() -> None:
    native = (ROOT / "csrc/collectors/proc/standing_call.h").read_text(encoding="utf-8")
    known = re.findall(r"\{SYS_(\w+), \"(\w+)\", (true|false)\}", native)
    assert len(known) > 25
    for machine, header in (
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ):
        if not os.path.exists(header):
            continue
        text = Path(header).read_text(encoding="utf-8")
        numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text)}
        calls = calls_of(machine)
        for name, called, on_descriptor in known:
            if name in numbers and numbers[name] in calls:
                call = calls[numbers[name]]
                assert (call.name, call.on_descriptor) == (called, on_descriptor == "true"), (machine, name)
    assert {called for _, called, _ in known} <= {call.name for call in calls_of("x86_64").values()}
    assert calls_of("riscv64") == {}


FAKE = """#!/bin/sh
exec {python} - <<'END'
import json, sys
print(json.dumps([
    {{"os_thread_id": 7, "thread_id": 70, "thread_name": "MainThread", "owns_gil": False,
      "frames": [{{"name": "fetch", "filename": "/job/train.py", "line": 41}}]}},
    {{"os_thread_id": 8, "thread_id": 80, "thread_name": "logger", "owns_gil": True, "frames": []}},
]))
END
"""


def put(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "py-spy"
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(stacks, "find_program", lambda: str(script))


def test_stacks_and_the_holder_of_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, FAKE.format(python=shlex.quote(sys.executable)), monkeypatch)
    found = stacks.read_stacks(7)
    assert found.by_thread[7].frames == ("fetch at /job/train.py:41",)
    holder = found.holder()
    assert holder is not None
    assert (holder.tid, holder.name) == (8, "logger")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\necho 'Permission denied (os error 13)' >&2; exit 1\n", "may not read the memory"),
        ("#!/bin/sh\necho 'Error: Failed to find python version' >&2; exit 1\n", "py-spy: Failed to find python"),
        ("#!/bin/sh\necho nonsense\n", "makes no sense"),
        ("#!/nowhere/python\n", "cannot be started"),
    ],
)
def test_why_there_are_no_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str) -> None:
    put(tmp_path, text, monkeypatch)
    found = stacks.read_stacks(7)
    assert found.by_thread == {}
    assert why in found.unseen


def test_a_slow_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "#!/bin/sh\nexec sleep 60\n", monkeypatch)
    monkeypatch.setattr(stacks, "_LIMIT_S", 0.2)
    assert "no answer within" in stacks.read_stacks(7).unseen


def test_without_the_program_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_program", lambda: None)
    with program("time.sleep(60)") as pid:
        peek = peek_at(pid, reads_stacks=True)
    assert peek.unseen == ("its Python stack was not read: py-spy is not installed (pip install 'stashtrace[stacks]')",)


@pytest.mark.skipif(stacks.find_program() is None, reason="needs py-spy")
def test_a_real_stack() -> None:
    with program("def fetch():\n    time.sleep(60)\nfetch()") as pid:
        peek = peek_at(pid, reads_stacks=True)
    assert peek.thread is not None
    assert peek.thread.place.startswith("fetch at ")


@needs_root
def test_what_another_user_may_not_see_is_said() -> None:
    with program("time.sleep(60)") as pid:
        reported = as_another_user(lambda: peek_at(pid).to_text())
    peek = Peek.from_text(reported)
    assert peek is not None
    assert peek.unseen == ("its system calls are not shown to this user",)
    assert (peek.state, peek.moved_bytes) == ("S", -1)
    assert peek.thread is not None
    assert peek.thread.call == ""
