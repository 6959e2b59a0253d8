"""Every signal reaches a traced job as often as it reaches the same job untraced, whoever sends it.

Who sends: a terminal, somebody who means the process group, the launcher alone, or the job alone, and ``timeout`` with
and without ``--foreground``. All jobs of a test run side by side; each writes to a file what it saw.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import environment

#: Appends each signal that it sees to its log, until a file says that it is over.
COUNTING = """
import os, pathlib, signal, sys, time
log, over = sys.argv[1], pathlib.Path(sys.argv[2])
def say(word):
    with open(log, "a") as file: file.write(word + "\\n")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda number, frame: say(signal.Signals(number).name))
say(f"pid {os.getpid()}")
while not over.exists(): time.sleep(.02)
"""
#: Dies as Python does; what it says on stderr goes to a file.
DYING = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.dup2(os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY, 0o600), 2)
def wait(): open(sys.argv[1], "a").write(f"pid {os.getpid()}\\n"), time.sleep(600)
wait()
"""
SENDERS = ("terminal", "group", "launcher", "job", "timeout", "timeout --foreground")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: What a terminal sends for a key; its end is SIGHUP.
KEYS = {signal.SIGINT: b"\x03", signal.SIGQUIT: b"\x1c"}
#: Longer than the launcher may hold a signal back, and than `timeout` takes between its two.
QUIET_S = 1.5


def by_terminal(number: signal.Signals) -> bool:
    return number in KEYS or number == signal.SIGHUP


def until(true: Callable[[], object], what: str) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError(f"never {what}")


class Job:
    """One job, traced or not, and one who sends it signals."""

    def __init__(self, folder: Path, script: str, sender: str, traced: bool, limit_signal: int = 0) -> None:
        folder.mkdir(parents=True)
        self.folder, self.sender, self.log = folder, sender, folder / "log"
        self.master, self.ended = -1, False
        (folder / "job.py").write_text(script)
        words = [sys.executable, "-S", str(folder / "job.py"), str(self.log), str(folder / "other")]
        if traced:
            words = [
                *(sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--no-merge", "--"),
                *words,
            ]
        if sender.startswith("timeout"):
            words = [*sender.split(), "-s", str(int(limit_signal)), "600", *words]
        if sender == "terminal":
            self.pid, self.master = pty.fork()
            if self.pid == 0:
                os.execve(words[0], words, environment())
            os.set_inheritable(self.master, False)  # else the next job keeps this one's terminal open
        else:
            with open(folder / "said", "wb") as said:
                self.pid = subprocess.Popen(
                    words, env=environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
                ).pid

    def kill(self) -> None:
        """Leave nothing behind, however the test ended."""
        for pid in [int(self.lines()[0].split()[1])] if self.lines() else []:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        if not self.ended:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def await_ready(self) -> None:
        until(self.lines, f"ready: {self.folder}")
        job = int(self.lines()[0].split()[1])
        until(lambda: Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[0] == "S", "asleep")

    def send(self, number: signal.Signals) -> None:
        if self.sender == "terminal" and number in KEYS:
            os.write(self.master, KEYS[number])
        elif self.sender == "terminal":
            os.close(self.master)
            self.master = -1
        elif self.sender == "group":
            os.killpg(self.pid, number)
        elif self.sender == "job":
            os.kill(int(self.lines()[0].split()[1]), number)
        elif self.sender == "launcher":
            os.kill(self.pid, number)
        else:
            os.kill(self.pid, signal.SIGALRM)  # its time limit, without the time

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.lines()[1:]))

    def end(self) -> int:
        """Exit code as a shell reports it."""
        until(self.has_ended, f"ended: {self.folder}")
        if self.master >= 0:
            os.close(self.master)
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        return 128 + number if number else os.WEXITSTATUS(self.status)

    def has_ended(self) -> bool:
        pid, self.status = os.waitpid(self.pid, os.WNOHANG)
        self.ended = pid != 0
        return self.ended


Start = Callable[..., Job]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make jobs that are gone when the test is over."""
    jobs: list[Job] = []

    def make(*words: object) -> Job:
        jobs.append(Job(*words))  # type: ignore[arg-type]
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


@pytest.mark.parametrize("sender", SENDERS)
def test_the_job_sees_each_signal_once(start: Start, tmp_path: Path, sender: str) -> None:
    """A `timeout` signals its child and then the group: untraced, a quick job may see both."""
    numbers = [n for n in SIGNALS if sender != "terminal" or by_terminal(n)]
    numbers.sort(key=lambda n: n == signal.SIGHUP)  # a terminal that is gone has no keys
    rounds = [[n] for n in numbers] if sender.startswith("timeout") else [numbers]
    jobs: list[tuple[Job, list[signal.Signals]]] = [
        (start(tmp_path / f"{traced}{i}", COUNTING, sender, traced, sent[0]), sent)
        for traced in (False, True)
        for i, sent in enumerate(rounds)
    ]
    for job, _ in jobs:
        job.await_ready()
    for job, sent in jobs:
        for number in sent:
            job.send(number)
            until(lambda job=job, number=number: number.name in job.counts(), f"got {number.name}: {job.folder}")
    time.sleep(QUIET_S)
    for job, _ in jobs:
        (job.folder / "other").touch()
    codes = [job.end() for job, _ in jobs]
    half = len(jobs) // 2
    assert codes[half:] == codes[:half]
    for (untraced, _), (traced, sent) in zip(jobs[:half], jobs[half:], strict=True):
        assert traced.counts() == {n.name: 1 for n in sent}
        if not sender.startswith("timeout"):
            assert untraced.counts() == traced.counts()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.trust) for n in SIGNALS if n != signal.SIGINT)]
)
def test_the_job_dies_as_untraced(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    senders = [s for s in SENDERS if s != "terminal" or by_terminal(number)]
    jobs = {
        (sender, traced): start(tmp_path / f"{i}{traced}", DYING, sender, traced, number)
        for i, sender in enumerate(senders)
        for traced in (False, True)
    }
    for job in jobs.values():
        job.await_ready()
    for job in jobs.values():
        job.send(number)
    found = {}
    for key, job in jobs.items():
        code = job.end()
        words = (job.folder / "other").read_text().replace(str(job.folder), "FOLDER")
        if key[0].startswith("timeout") and not key[1]:
            continue  # its two signals may interrupt the traceback itself
        found[key] = code, words
    for sender in senders:
        expected = (124, found["group", False][1]) if sender.startswith("timeout") else found[sender, False]
        assert found[sender, True] == expected, sender
    if number == signal.SIGINT:
        assert found["group", True][1].count("KeyboardInterrupt") == 1


def test_an_interrupt_of_the_group_is_one_interrupt(start: Start, tmp_path: Path) -> None:
    """Of two Ctrl-C the second says "do not merge"; `timeout` sends one event as two signals."""
    job = start(tmp_path / "job", DYING, "timeout", True, signal.SIGINT)
    job.await_ready()
    job.send(signal.SIGINT)
    assert job.end() == 124
    facts = json.loads((tmp_path / "job/run/run.json").read_text())
    assert (facts["exit_code"], facts["signal"]) == (130, int(signal.SIGINT))


@pytest.mark.torch
@pytest.mark.trust
@pytest.mark.parametrize("sender", ["group", "launcher", "timeout"])
def test_torchrun_ends_as_untraced(start: Start, tmp_path: Path, sender: str) -> None:
    pytest.importorskip("torch")
    script = (
        "import subprocess, sys\n"
        "words = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2',"
        " __file__[:-6] + 'rank.py', *sys.argv[1:]]\n"
        "import os; os.execv(words[0], words)\n"
    )
    rank = COUNTING.replace("while not", "import time\ntime.sleep(3)\nwhile not") + "\n"
    answers = {}
    for traced in (False, True):
        folder = tmp_path / str(traced)
        job = start(folder, script, sender, traced, signal.SIGINT)
        (folder / "rank.py").write_text(rank)
        until(lambda job=job: len(job.lines()) == 2, "both ranks ready")
        job.send(signal.SIGINT)
        until(lambda job=job: any("SIG" in line for line in job.lines()), "told the ranks")
        time.sleep(QUIET_S)
        (folder / "other").touch()
        code = job.end()
        answers[traced] = code, Counter(line for line in job.lines() if "SIG" in line)
    assert answers[True] == answers[False]
