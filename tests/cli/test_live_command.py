"""``stashtrace live`` on a separate terminal, in a pipe, and on what is no run."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Answer, environment

from stashtrace.live.state import LiveState

ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
PATIENCE_S = 60.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A run directory whose state says that a job was begun; it is of now, and a round takes an hour."""
    now = time.time_ns()
    made = LiveState("node1", "id", ["python", "train.py"], begin_realtime_ns=now, updated_realtime_ns=now)
    made.interval_s, made.notes = 3600.0, ["as a test says"]
    made.write(tmp_path)
    return tmp_path


class Terminal:
    """A command on a separate terminal."""

    def __init__(self, *words: object, columns: int = 80, **extra: str) -> None:
        self.controller, self._side = pty.openpty()
        self.resize(columns)
        self.modes = termios.tcgetattr(self._side)
        self.seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stashtrace", *map(str, words)],
            stdin=self._side,
            stdout=self._side,
            stderr=self._side,
            env=environment(TERM="xterm-256color", **extra),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.controller, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.controller, keys)

    def wait_for(self, text: bytes, times: int = 1) -> None:
        """Read until the text was seen so often."""
        end = time.monotonic() + PATIENCE_S
        while self.seen.count(text) < times:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.controller], [], [], 0.1)[0]:
                self.seen += os.read(self.controller, 65536)

    def ends(self) -> int:
        """Return the exit code; the terminal is as it was."""
        self.wait_for(LEAVE)
        code = self.process.wait(PATIENCE_S)
        while select.select([self.controller], [], [], 0.1)[0]:
            self.seen += os.read(self.controller, 65536)
        assert termios.tcgetattr(self._side) == self.modes
        assert self.seen.rindex(SHOW_CURSOR) > self.seen.rindex(ENTER)
        assert self.seen.rindex(LEAVE) > self.seen.rindex(ENTER)
        assert b"Traceback" not in self.seen
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.controller)
        os.close(self._side)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Opens terminals, and closes them."""
    opened: list[Terminal] = []

    def open_one(*words: object, **options: object) -> Terminal:
        opened.append(Terminal(*words, **options))  # type: ignore[arg-type]
        return opened[-1]

    pytest.importorskip("rich")
    yield open_one
    for one in opened:
        one.close()


def test_q_quits(job: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("live", job)
    screen.wait_for(b"q quits")
    assert b"\x1b[1;33m" in screen.seen or b"\x1b[1m" in screen.seen
    screen.type(b"xq")
    assert screen.ends() == 0


def test_ctrl_c_quits_without_a_word(job: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("live", job)
    screen.wait_for(b"q quits")
    screen.type(b"\x03")
    assert screen.ends() == 130
    assert b"error" not in screen.seen


def test_terminate_restores_the_terminal(job: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("live", job)
    screen.wait_for(b"q quits")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.ends() == 143


def test_a_new_size_is_drawn_at_once(job: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("live", job, "--interval", 3600)
    screen.wait_for(b"q quits")
    screen.resize(120)
    screen.wait_for(b"q quits", 2)
    screen.type(b"q")
    assert screen.ends() == 0


def test_a_stopped_screen_gives_the_terminal_back_and_takes_it_again(
    job: Path, terminal: Callable[..., Terminal]
) -> None:
    """Nothing stops a process without a shell above it: it goes on at once."""
    screen = terminal("live", job, "--interval", 3600)
    screen.wait_for(b"q quits")
    screen.type(b"\x1a")
    screen.wait_for(LEAVE)
    screen.wait_for(ENTER, 2)
    screen.wait_for(b"q quits", 2)
    screen.type(b"q")
    screen.wait_for(LEAVE, 2)
    assert screen.ends() == 0


def test_without_colour(job: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("live", job, NO_COLOR="1")
    screen.wait_for(b"q quits")
    screen.type(b"q")
    assert screen.ends() == 0
    assert b"\x1b[1m" not in screen.seen
    assert b"\x1b[1;33m" not in screen.seen


def test_the_end_of_the_job_stays_on_the_terminal(job: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("live", job, "--interval", 0.2)
    screen.wait_for(b"running, no step has ended yet")
    LiveState("node1", "id", ended=True, updated_realtime_ns=time.time_ns()).write(job)
    assert screen.ends() == 0
    assert b"ended, no end is recorded" in screen.seen[screen.seen.rindex(LEAVE) :]


def test_a_directory_that_vanishes_ends_the_screen(job: Path, terminal: Callable[..., Terminal]) -> None:
    run = job / "run"
    run.mkdir()
    (job / "live-node1.json").rename(run / "live-node1.json")
    screen = terminal("live", run, "--interval", 0.2)
    screen.wait_for(b"q quits")
    run.rename(job / "elsewhere")
    assert screen.ends() == 4
    assert b"run is gone: it was renamed or removed" in screen.seen[screen.seen.rindex(LEAVE) :]


def test_two_viewers_at_once(job: Path, terminal: Callable[..., Terminal]) -> None:
    screens = [terminal("live", job), terminal("live", job)]
    for screen in screens:
        screen.wait_for(b"q quits")
    for screen in screens:
        screen.type(b"q")
    assert [screen.ends() for screen in screens] == [0, 0]
    assert [path.name for path in job.iterdir()] == ["live-node1.json"]


def test_a_pipe_gets_it_once(job: Path, run: Callable[..., Answer]) -> None:
    answer = run("live", job)
    assert answer.code == 0
    assert answer.out.splitlines()[0] == run("live", job, "--once").out.splitlines()[0]
    assert "running, no step has ended yet: 1 host" in answer.out
    assert "! as a test says" in answer.out
    assert "\x1b" not in answer.out
    assert "q quits" not in answer.out


def test_the_width_is_that_of_the_shell(job: Path, run: Callable[..., Answer]) -> None:
    assert max(map(len, run("live", job, COLUMNS="50").out.splitlines())) <= 50


def test_json_is_one_object(job: Path, run: Callable[..., Answer]) -> None:
    answer = run("live", job, "--once", "--format", "json")
    assert answer.code == 0
    assert json.loads(answer.out)["condition"] == "begins"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99}', '{"format": 1, "host": "a", "ranks": 3}'])
def test_a_damaged_state_is_one_line(tmp_path: Path, text: str, run: Callable[..., Answer]) -> None:
    (tmp_path / "live-node1.json").write_text(text)
    answer = run("live", tmp_path)
    assert answer.code == 4
    assert answer.out == ""
    assert len([line for line in answer.err.splitlines() if line.startswith("error:")]) == 1
    assert "bug" not in answer.err


@pytest.mark.parametrize("words", [("--interval", "0"), ("--interval", "x"), ("--interval", "inf")])
def test_an_interval_that_is_none(words: tuple[str, str], job: Path, run: Callable[..., Answer]) -> None:
    answer = run("live", job, *words)
    assert answer.code == 2
    assert "seconds from 0.1 to 3600" in answer.err


def test_without_rich_there_is_one_line_and_once_works(job: Path, terminal: Callable[..., Terminal]) -> None:
    (job / "rich").mkdir()
    (job / "rich" / "__init__.py").write_text("raise ImportError")
    screen = terminal("live", job, PYTHONPATH=f"{job}:{environment()['PYTHONPATH']}")
    assert screen.process.wait(PATIENCE_S) == 4
    screen.wait_for(b"pip install 'stashtrace[live]'")
    assert b"needs the package rich, which is not installed" in screen.seen
    once = terminal("live", job, "--once", PYTHONPATH=f"{job}:{environment()['PYTHONPATH']}")
    assert once.process.wait(PATIENCE_S) == 0
    once.wait_for(b"running, no step has ended yet")
