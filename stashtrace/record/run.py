"""Starts a command with tracing on, and stays out of its way until it has ended.

Called by ``stashtrace run`` (merging is the caller's business). The command runs in our own process group
with our own stdin and stdout, exactly where it would run without us: what the terminal sends (Ctrl-C,
Ctrl-Z) and what is sent to the group reaches it by the kernel, what somebody sends to us alone is passed on;
``record.group_witness`` tells the two apart. Signals are taken by ``sigwaitinfo``; no handler runs, so nothing
can be interrupted halfway.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace import __version__
from stashtrace.errors import CaptureError
from stashtrace.record.directory import claim_run_file, file_rights, make_scratch, prepare_directory, write_run_file
from stashtrace.record.environment import LIBRARY_PATH, traced_environment
from stashtrace.record.group_witness import GroupWitness
from stashtrace.record.job import Job, job_of
from stashtrace.record.launchers import announce, own_place
from stashtrace.record.options import DEFAULT_OPTIONS, RecordOptions
from stashtrace.record.program import find_program, spawn, why_not_preloaded, without_library
from stashtrace.record.remote import is_url
from stashtrace.record.staged import list_for_run
from stashtrace.scrubbing import scrub_arguments

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_SI_KERNEL = 128
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
#: So long after its start a program may not have mapped our library yet.
_LOADING_S = 1.0
#: Control devices of the NVIDIA and AMD drivers.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a traced command ended.

    Attributes
    ----------
    directory : Path
        The run directory; the local one if the run goes to a URL.
    records : Path
        Where its processes wrote: the run directory, or one on local scratch.
    url : str
        Where the run goes to in the end, empty if it stays in ``directory``.
    job : Job
        What it is a part of.
    facts : dict
        Content of ``run.json``, or of this launcher's file.
    launch_file : Path, optional
        This launcher's file, if the job has several launchers and a directory to meet in.
    exit_code : int
        As a shell reports it: 128 + n after signal n.
    signal_number : int
        The signal that ended it, 0 if none.
    interrupts_count : int
        Ctrl-C that arrived meanwhile.
    survivors : tuple of int
        Processes of the job that still ran when the grace time was over.
    complaint : str
        Why ``run.json`` could not be finished, empty if it was.
    goal_reached : bool
        Whether it was ended by us, at the step that was asked for; the exit code is 0 then.
    """

    directory: Path
    records: Path
    url: str
    job: Job
    facts: dict[str, Any]
    launch_file: Path | None
    exit_code: int
    signal_number: int
    interrupts_count: int
    survivors: tuple[int, ...]
    complaint: str
    goal_reached: bool = False


@dataclass(slots=True)
class _Watch:
    """What is known about the command while it runs."""

    child: int
    witness: GroupWitness
    status: int | None = None
    interrupts_count: int = 0


def run_command(
    command: Sequence[str],
    options: RecordOptions = DEFAULT_OPTIONS,
    *,
    out: str | None = None,
    run_id: str | None = None,
    scratch: str | None = None,
    grace_s: float = 10.0,
    library: str | None = None,
    on_wait: Callable[[Sequence[int]], None] | None = None,
    on_changed: Callable[[int, Sequence[str]], None] | None = None,
) -> Outcome:
    """Run ``command`` with tracing on and wait for it and what it leaves running.

    Parameters
    ----------
    command : sequence of str
        Program and its arguments.
    options : RecordOptions
        What is recorded.
    out : str, optional
        Run directory, or URL.
    run_id : str, optional
        Name of the job, the same on every host, if nothing else tells.
    scratch : str, optional
        Local directory under which processes write until the command has ended. Bringing the records to ``out`` is
        the caller's business, as are the words in ``launch_file`` that say so.
    grace_s : float
        How long processes may outlive the command before the run counts as ended.
    library : str, optional
        Runtime library, the package's own by default.
    on_wait : callable, optional
        Told once which processes are being waited for after the command has ended.
    on_changed : callable, optional
        Told how many staged files have a copy that is used, and which do not: they changed since they were copied.

    Raises
    ------
    UsageError
        If there is no such command.
    CaptureError
        If it cannot be started, or the directory cannot be used.
    """
    program = find_program(command)
    job = job_of(command, os.environ, run_id)
    # Refuses unknown collectors and a missing library before a directory is made.
    environment = traced_environment(os.environ, options, run_dir=".", run_id=job.run_id, library=library)
    content = run_facts(command, job, options.recorded_collectors()) | options.to_run_facts()
    if why := why_not_preloaded(program):
        environment["LD_PRELOAD"] = without_library(environment["LD_PRELOAD"])
        content["not_recorded"] = f"{Path(program).name} ({why})"
    url = out if out is not None and is_url(out) else ""
    with file_rights(options.share):
        records = make_scratch(scratch, job) if scratch is not None or url else None
        directory = prepare_directory(out, job=job) if records is None or not url else records
        launch_file = open_run_directory(directory, content, job)
        if records is None:
            records = directory
        elif records != directory:
            write_run_file(records, content)  # so that it can be merged where it is, should it never come home
    environment["STASHTRACE_DIR"] = str(records)
    own_list = records / f"staged.{os.uname().nodename}.{os.getpid()}.list"
    if options.staged is not None:
        with file_rights(options.share):
            usable = list_for_run(Path(options.staged), own_list)
        environment["STASHTRACE_STAGED"] = str(own_list)
        if usable[1] and on_changed is not None:
            on_changed(*usable)

    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have left it ignored: no exit status then
    # An ignored signal (nohup) stays ignored: for us, and for the command, which inherits it.
    taken = [s for s in FORWARDED if signal.getsignal(s) is not signal.SIG_IGN] + [signal.SIGCHLD]
    signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    witness = GroupWitness()
    try:
        _adopt_orphans()
        watch = _Watch(spawn(program, command, environment, old_mask), witness)
        goal = StepGoal(records) if options.until_step is not None else None
        _wait_for_command(watch, taken, goal)
        ended = time.time_ns(), time.monotonic_ns()
        if goal is not None and goal.reached:
            goal.end_rest(lambda: [pid for pid in living_processes(records) if _is_below_us(pid)])
        survivors = _wait_for_stragglers(watch, records, taken, grace_s, on_wait, alone=launch_file is None)
        while (late := signal.sigtimedwait(taken, 0)) is not None:
            _take(watch, late)  # else it would strike when the mask is lifted, and the outcome were lost
    finally:
        witness.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        own_list.unlink(missing_ok=True)
    reached = goal is not None and goal.reached
    number = os.WTERMSIG(watch.status) if watch.status is not None and os.WIFSIGNALED(watch.status) else 0
    code = 128 + number if number else os.waitstatus_to_exitcode(watch.status or 0)
    if goal is not None:
        goal.clear()
    if reached:  # however the command took it: we ended it, as we were told to
        number = code = 0
        content["until_step"] = options.until_step
    content |= {"end_realtime_ns": ended[0], "end_monotonic_ns": ended[1], "exit_code": code, "signal": number}
    if survivors:
        content["outlived_by"] = ", ".join(map(str, survivors))
    complaint = ""
    try:
        with file_rights(options.share):
            if launch_file is None:
                write_run_file(directory, content)
            if records != directory:
                write_run_file(records, content)
    except CaptureError as error:  # the disk filled up meanwhile: the run is readable, it only looks unfinished
        complaint = str(error)
    return Outcome(
        directory,
        records,
        url,
        job,
        content,
        launch_file,
        code,
        number,
        watch.interrupts_count,
        tuple(survivors),
        complaint,
        reached,
    )


def open_run_directory(directory: Path, content: Mapping[str, Any], job: Job) -> Path | None:
    """Write what is known at the start: ``run.json``, and this launcher's file if the job may have several.

    Raises
    ------
    CaptureError
        If it cannot be written, or another run was begun here meanwhile.
    """
    first = claim_run_file(directory, content)
    return None if first and not job.name else announce(directory, content)


def living_processes(directory: Path) -> list[int]:
    """Processes of this host that have a ring of the run open now."""
    pids = []
    for ring in directory.glob("*.ring"):
        pid = ring.name.split(".")[-3]
        try:
            # The mapping proves that it is the same process and not a later one with its number.
            if ring.name in Path(f"/proc/{pid}/maps").read_text(errors="replace"):
                pids.append(int(pid))
        except OSError:
            continue  # it is gone, or not ours to look at
    return pids


def adopted_processes(directory: Path) -> list[int]:
    """Children of this process with the environment of the run that record, or may begin to.

    A daemon has no ring while it replaces its program, nor before its first record; it is our child, since we adopt
    the orphans of the command.
    """
    variable = b"STASHTRACE_DIR=" + os.fsencode(directory)
    pids = []
    for pid in _children():
        place = Path(f"/proc/{pid}")
        try:
            ours = variable in (place / "environ").read_bytes().split(b"\0")
            if ours and (LIBRARY_PATH.name in (place / "maps").read_text(errors="replace") or _is_new(place)):
                pids.append(pid)
        except OSError:
            continue  # it is gone, or not ours to look at
    return pids


def _children() -> list[int]:
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, listed.read_text(encoding="ascii").split())
        except (OSError, ValueError):
            continue  # a thread that has ended
    return found


def _is_new(place: Path) -> bool:
    """Whether a process is so young that its program may still be being loaded."""
    ticks = int((place / "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") < _LOADING_S


def _adopt_orphans() -> None:
    """Become the parent of what the command leaves behind, so that its end is seen."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # stragglers are then found by their rings alone


def _reap(watch: _Watch) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == watch.child:
            watch.status = status


def _take(watch: _Watch, info: signal.struct_siginfo) -> None:
    """Act on one signal that reached us."""
    number, sender = info.si_signo, info.si_pid
    if number == signal.SIGCHLD:
        return
    if number == signal.SIGINT:
        watch.interrupts_count += 1
    other = None
    if watch.status is None:
        reached_group = watch.witness.settle(number, sender, by_terminal=info.si_code == _SI_KERNEL)
        if reached_group:
            # Sent to us alone and to the group it may be pending once more; of one event we take it once.
            again = signal.sigtimedwait([number], 0)
            if again is not None and again.si_pid == sender:
                watch.witness.sent_to_group(number, sender)
            else:
                other = again
        # A job that left our group did not get what the group got; a terminal knows where it is.
        if not reached_group or (sender != 0 and not _is_in_our_group(watch.child)):
            try:
                os.kill(watch.child, number)
            except ProcessLookupError:
                return
    if number == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)  # the shell sees the job stopped, as it would without us
    if other is not None:
        _take(watch, other)


def _is_in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return True  # it has ended and cannot be signalled any more


def _wait_for_command(watch: _Watch, taken: Sequence[int], goal: StepGoal | None) -> None:
    _reap(watch)
    while watch.status is None:
        info = signal.sigwaitinfo(taken) if goal is None else signal.sigtimedwait(taken, _POLL_S)
        if info is not None:
            _take(watch, info)
        elif goal is not None and (number := goal.signal_now()):
            os.kill(watch.child, number)  # not reaped yet, so the number is still the command's
        _reap(watch)


def _wait_for_stragglers(
    watch: _Watch,
    directory: Path,
    taken: Sequence[int],
    grace_s: float,
    on_wait: Callable[[Sequence[int]], None] | None,
    *,
    alone: bool,
) -> list[int]:
    deadline = time.monotonic() + grace_s
    told = False

    def living() -> list[int]:
        found = living_processes(directory)
        own = found if alone else [pid for pid in found if _is_below_us(pid)]
        return sorted({*own, *adopted_processes(directory)})

    while True:
        _reap(watch)
        left = living()
        if not left or time.monotonic() >= deadline:
            return left
        if not told and on_wait is not None and time.monotonic() > deadline - grace_s + 1.0:
            on_wait(left)
            told = True
        info = signal.sigtimedwait(taken, _POLL_S)
        if info is not None:
            _take(watch, info)
            if info.si_signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                return living()


def _is_below_us(pid: int) -> bool:
    """Whether a process descends from this one: others of this host may belong to other launchers of the job."""
    own = os.getpid()
    while pid > 1 and pid != own:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == own


def run_facts(command: Sequence[str], job: Job, collectors: Sequence[str]) -> dict[str, Any]:
    """Content of ``run.json`` at the start."""
    return {
        "format": 1,
        "run_id": job.run_id,
        **({"job": job.name, "launchers_count": job.launchers_count} if job.name else {}),
        "command": scrub_arguments(command),
        "working_directory": os.getcwd(),
        "begin_realtime_ns": time.time_ns(),
        "begin_monotonic_ns": time.monotonic_ns(),
        "host": os.uname().nodename,
        "boot_id": _boot_id(),
        "collectors": list(collectors),
        "stashtrace_version": __version__,
        "launcher_pid": os.getpid(),
        "place": own_place(),
        "gpu_driver": "present" if any(map(os.path.exists, _GPU_DEVICES)) else "none",
    }


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


# `--until-step`: sees when all ranks of this host have made the steps that were asked for, and how to end the
# command.
#
# A rank that gets there leaves an empty file in the run directory (``probes.process``), whose name holds the host and
# how many ranks it has.

#: Ranks are in step, but a file may come late: so long the others are waited for.
_OTHERS_S = 5.0
#: From asking the command to end to making it, and the same for what it leaves.
_PATIENCE_S, _REST_S = 20.0, 3.0


class StepGoal:
    """Watches a run directory.

    Parameters
    ----------
    directory : Path
        Where the processes of this host write.

    Attributes
    ----------
    reached : bool
        Whether ranks made their steps and the command was told to end.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._first_s = 0.0
        self._asked_s = 0.0
        self.reached = False

    def signal_now(self) -> int:
        """Signal that the command should be sent now: SIGTERM once, SIGKILL if it does not follow, else 0."""
        now = time.monotonic()
        if self.reached:
            return signal.SIGKILL if now > self._asked_s + _PATIENCE_S else 0
        files = self._files()
        if not files:
            return 0
        self._first_s = self._first_s or now
        expected = max(int(file.name.split(".")[-2]) for file in files)
        if len(files) < expected and now < self._first_s + _OTHERS_S:
            return 0
        self.reached, self._asked_s = True, now
        return signal.SIGTERM

    def end_rest(self, living: Callable[[], Iterable[int]]) -> None:
        """End ranks that outlive the command, as those below a shell do: it does not pass signals on."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _REST_S
            for pid in living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while time.monotonic() < deadline and list(living()):
                time.sleep(_POLL_S)

    def clear(self) -> None:
        """Remove the files."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Of this host: others may write into the same directory."""
        return list(self._directory.glob(f"{os.uname().nodename}.*.reached"))
