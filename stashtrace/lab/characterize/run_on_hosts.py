"""One run of a job on the hosts that take part: a ``stashtrace run`` on each; its output goes to a file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO

from stashtrace.errors import CaptureError
from stashtrace.files.whole_files import new_log
from stashtrace.lab.processes import signals_handled
from stashtrace.record.directory import file_rights, living_processes
from stashtrace.record.options import DEFAULT_OPTIONS, RecordOptions
from stashtrace.record.program import own_program

#: Ranks are asked to go on a little, so that the last step that counts is whole on each of them.
_MARGIN_STEPS = 2
#: From asking a host to end to making it.
_PATIENCE_S = 30.0
_POLL_S = 0.1
#: When one host of several has failed, the others are awaited for this time.
_OTHERS_S = 20.0
_SSH = ("ssh", "-o", "BatchMode=yes")
#: Runs a command on another host, and ends it when its standard input, which is ours, closes with the connection. The
#: time at which the process began distinguishes it from a later one of the same number.
_GUARDED = (
    "exec 3<&0; began() {{ cut -d' ' -f22 /proc/$$/stat; }}; now=$(began); "
    '(cat <&3; [ "$now" = "$(began)" ] && kill -TERM $$ && sleep {patience_s:.0f} && '
    '[ "$now" = "$(began)" ] && kill -KILL -- -$$) >/dev/null 2>&1 & '
    "exec env {words} 3<&- </dev/null"
)
#: Variables that a command on another host needs as well; all others are those of that host.
_CARRIED = ("OMP_NUM_THREADS", "PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CONDA_PREFIX")


class RunFailedError(CaptureError):
    """The command of a run ended with an error, or did not end; the message holds what it said."""


@dataclass(frozen=True, slots=True)
class HostTask:
    """A command for one host."""

    #: What to run there.
    words: tuple[str, ...]
    #: Variables, added to those of the caller.
    environment: Mapping[str, str]
    #: Command line that runs words on that host, made of the words and the variables.
    wrap: Callable[[list[str], Mapping[str, str]], list[str]]
    #: For messages.
    name: str = ""
    #: What is recorded; the step at which the command is ended is set for every run.
    options: RecordOptions = DEFAULT_OPTIONS
    #: Copies what was recorded there into the directory of the same name here.
    bring_home: Callable[[Path], None] | None = None
    #: It ends when its standard input is closed: no signal reaches it.
    connected: bool = False


def here(words: list[str], environment: Mapping[str, str]) -> list[str]:
    """Run words on this host: nothing is wrapped around them."""
    return words


def by_ssh(host: str, ssh: Sequence[str] = _SSH) -> Callable[[list[str], Mapping[str, str]], list[str]]:
    """Run words on a host reached without a password, in the directory of the same name; for ``connected`` tasks."""

    def wrap(words: list[str], environment: Mapping[str, str]) -> list[str]:
        carried = {name: os.environ[name] for name in _CARRIED if name in os.environ} | dict(environment)
        variables = [f"{name}={value}" for name, value in carried.items()]
        script = _GUARDED.format(words=shlex.join([*variables, *words]), patience_s=_PATIENCE_S)
        return [*ssh, host, f"cd {shlex.quote(os.getcwd())} && exec sh -c {shlex.quote(script)}"]

    return wrap


def from_host(host: str, ssh: Sequence[str] = _SSH) -> Callable[[Path], None]:
    """Copy a directory from a host; files that are here already, by a shared file system, stay."""

    def bring_home(directory: Path) -> None:
        there = f"tar -C {shlex.quote(str(directory))} -cf - ."
        with subprocess.Popen([*ssh, host, there], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as sender:
            words = ["tar", "-C", str(directory), "--skip-old-files", "-xf", "-"]
            code = subprocess.run(words, stdin=sender.stdout, stderr=subprocess.DEVNULL, check=False).returncode
        if code or sender.returncode:
            raise CaptureError(f"cannot copy {directory.name} from {host}", hint=f"try: ssh {host} ls {directory}")

    return bring_home


def run_tasks(
    tasks: Sequence[HostTask],
    directory: Path,
    steps_count: int,
    timeout_s: float,
    *,
    name: str,
    on_wait: Callable[[], None],
) -> None:
    """Run the tasks side by side, each traced into ``directory``; what an earlier attempt left there is removed.

    ``directory``: run directory, seen under the same name by all hosts, or brought home by the task. ``steps_count``:
    training steps that must be whole on every rank; a little later the command is ended. ``timeout_s``: a run that
    takes longer is stopped and has failed. Raises RunFailedError if the command failed on a host, or took too long.
    Raises CaptureError if it could not be started, or its records could not be copied here.
    """
    shutil.rmtree(directory, ignore_errors=True)
    log = directory.with_suffix(".log")
    started: list[subprocess.Popen[bytes]] = []
    failure: CaptureError | None = None
    with file_rights(share=False):
        directory.mkdir(parents=True, exist_ok=True)
        out = new_log(log)
    # A signal that would end this process interrupts it, so that it ends the runs that are under way first.
    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with out, signals_handled(ending, _interrupt):
        try:
            for task in tasks:
                recorded = replace(task.options, until_step=steps_count + _MARGIN_STEPS).to_arguments()
                options = ["--out", str(directory), "--no-merge", *recorded]
                if len(tasks) > 1:
                    options += ["--run-id", name]
                words = own_program("stashtrace", "run", *options, "--", *task.words)
                started.append(_start(task, words, out))
            _wait(tasks, started, log, timeout_s, on_wait)
        except RunFailedError as error:
            failure = error
        finally:
            _end(started, directory)
    for task in tasks:
        if task.bring_home is not None:
            try:
                task.bring_home(directory)
            except CaptureError as error:
                failure = failure or error
    if failure is not None:
        raise failure


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _start(task: HostTask, words: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            task.wrap(words, task.environment),
            env=os.environ | dict(task.environment),
            stdin=subprocess.PIPE if task.connected else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    except OSError as error:
        raise CaptureError(f"cannot start {task.wrap(words, {})[0]}: {error.strerror}") from error


def _wait(
    tasks: Sequence[HostTask],
    started: Sequence[subprocess.Popen[bytes]],
    log: Path,
    timeout_s: float,
    on_wait: Callable[[], None],
) -> None:
    """Wait for all hosts, raise the first failure; once one has failed the others get little more time."""
    deadline = time.monotonic() + timeout_s
    failure: RunFailedError | None = None
    while True:
        codes = [process.poll() for process in started]
        if failure is None and any(codes):
            task, code = next((task, code) for task, code in zip(tasks, codes, strict=True) if code)
            where = f" on {task.name}" if len(tasks) > 1 and task.name else ""
            said = last_words(log)
            why = f": {said}" if said else f" (see {log.name})"
            failure = RunFailedError(f"the command ended with exit code {code}{where}{why}")
            deadline = min(deadline, time.monotonic() + _OTHERS_S)
        late = time.monotonic() > deadline
        if late and failure is None and None in codes:
            failure = RunFailedError(f"stopped after {timeout_s:.0f} s without having made its steps (see {log.name})")
        if late or None not in codes:
            break
        on_wait()
        time.sleep(_POLL_S)
    if failure is not None:
        raise failure


_WORD = re.compile(r"[A-Za-z]{2}")
#: Where torchrun begins to say that a rank has ended, after what the rank said.
_LAUNCHER = re.compile(r"torch[./]distributed[./]elastic[./]multiprocessing")
#: What its summary says of a rank that a signal ended, which said nothing itself.
_SIGNAL = re.compile(r"Signal \d+ \(SIG\w+\).*")
_COMPLAINT = re.compile(r"can't|cannot|not found|No such|denied|Killed|refused|usage:")


def last_words(log: Path) -> str:
    """Find the line of a log that explains a failure: the last that names an error, else the job's last."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 65536))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if _WORD.search(line) and not line.startswith("stashtrace:")]
    errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line and "Signal" not in line]
    complaints = [line for line in lines if _COMPLAINT.search(line)]
    cause = next((at for at, line in enumerate(lines) if line.startswith("Root Cause")), len(lines))
    signals = [match[0] for line in lines[cause:] if (match := _SIGNAL.search(line))]
    begin = next((at for at, line in enumerate(lines) if _LAUNCHER.search(line)), len(lines))
    return (errors or complaints or signals or lines[:begin] or lines or [""])[-1][:200]


def _end(started: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    """End what still runs: SIGTERM, wait, SIGKILL; an interruption ends the waiting."""
    left = any(process.poll() is None for process in started)
    interrupted = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in started:
            _signal_group(process, number)
        deadline = time.monotonic() + _PATIENCE_S
        try:
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.01, deadline - time.monotonic()))
        except KeyboardInterrupt:
            interrupted = True
    if left:
        for pid in living_processes(directory):  # ranks in separate sessions, whose launcher was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if interrupted:
        raise KeyboardInterrupt


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
        if number == signal.SIGTERM:
            return  # the other host ends it
    if process.poll() is not None:
        return
    try:
        if number == signal.SIGTERM:
            process.terminate()  # `stashtrace run` passes it on and keeps what was recorded
        else:
            os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """Find a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
