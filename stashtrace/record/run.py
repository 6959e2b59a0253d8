"""Start a command with tracing on, and wait until it and its processes have ended.

Called by ``stashtrace run``, which merges the records afterwards. The command runs in our process group, with our stdin
and stdout, as it would without us. The kernel delivers to it what the terminal sends (Ctrl-C, Ctrl-Z) and what is sent
to the group; a signal that is sent to us alone we pass on. ``record.group_witness`` distinguishes the two. Signals are
taken by ``sigtimedwait``; no handler runs, so that nothing is interrupted halfway. SIGUSR2 asks for a window of a run
that is followed; the command gets it then only if it has a handler, since else it would be ended by it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace import __version__
from stashtrace.errors import CaptureError
from stashtrace.files.run_facts import GPU_INVENTORY
from stashtrace.record.directory import (
    RUN_DIRECTORY,
    claim_run_file,
    discard_run_without_records,
    file_rights,
    living_processes,
    make_scratch,
    prepare_directory,
    read_run_file,
    was_replaced,
    write_run_file,
)
from stashtrace.record.environment import LIBRARY_PATH, traced_environment, without_library
from stashtrace.record.follower import Follower, make_control
from stashtrace.record.gpu.inventory import InventoryReader
from stashtrace.record.group_witness import GroupWitness
from stashtrace.record.host import MemoryKills, far_file_system, near_folder, processor_name
from stashtrace.record.launchers import RECORDS, Job, announce, commit_of, job_of, own_place
from stashtrace.record.options import DEFAULT_OPTIONS, RecordOptions
from stashtrace.record.program import check_script, find_program, preload_obstacle, spawn
from stashtrace.record.remote import check_url, is_url
from stashtrace.record.staged_files import list_for_run
from stashtrace.scrubbing.secrets import scrub_arguments

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
#: Another thread of this process, as numpy has them, may take a SIGCHLD that comes while we do not wait for it, and
#: there it is lost: so often we look without one.
_LOOK_S = 0.5
#: A program that began less than this ago may not have mapped our library yet.
_LOADING_S = 1.0
#: Control devices of the NVIDIA and AMD drivers.
_NVIDIA_DEVICE = "/dev/nvidiactl"
_GPU_DEVICES = (_NVIDIA_DEVICE, "/dev/kfd")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a traced command ended."""

    #: The run directory; a local one if the run goes to a URL.
    directory: Path
    #: Where the processes wrote: the run directory, or a directory on local scratch.
    records: Path
    #: Where the run is to be delivered; empty if it stays in ``directory``.
    url: str
    #: The job that the command is a part of.
    job: Job
    #: Content of ``run.json``, or of this launcher's file.
    facts: dict[str, Any]
    #: This launcher's file, if the job has several launchers that share the directory.
    launch_file: Path | None
    #: As a shell reports it: 128 + n after signal n.
    exit_code: int
    #: The signal that ended the command, 0 if none did.
    signal_number: int
    #: How often Ctrl-C arrived.
    interrupts_count: int
    #: Processes of the job that still ran when the grace time was over.
    survivors: tuple[int, ...]
    #: Why the end of the run could not be written to ``run.json``.
    write_error: CaptureError | None
    #: Whether the run directory was made and named by us.
    is_new: bool
    #: Whether the run directory was not there before.
    is_made: bool
    #: Whether we ended the command at the step of ``until_step``; the exit code is 0 then.
    goal_reached: bool = False
    #: Whether another folder has the name of the run directory by now.
    replaced: bool = False


def run_command(
    command: Sequence[str],
    options: RecordOptions = DEFAULT_OPTIONS,
    *,
    out: str | None = None,
    run_id: str | None = None,
    scratch: str | None = None,
    grace_s: float = 10.0,
    overwrite: bool = False,
    library: str | None = None,
    on_wait: Callable[[Sequence[int]], None] | None = None,
    on_changed: Callable[[int, Sequence[str]], None] | None = None,
    on_far: Callable[[Path, str, Path | None], None] | None = None,
    follow: Sequence[str] | None = None,
    follow_sockets: Sequence[socket.socket] = (),
) -> Outcome:
    """Run ``command`` with tracing on; wait for it and for the processes that it leaves behind.

    ``command``: program and its arguments. ``options``: what is recorded. ``out``: run directory, or URL of one.
    ``run_id``: name of the job, the same on every host; needed where no scheduler or rendezvous gives one. ``scratch``:
    local directory below which processes write until the command has ended; without it they write into the run
    directory, unless another host or process answers for that: it may stand still, and the job with it. The caller
    copies the records to ``out`` and then marks ``launch_file`` as ended. ``grace_s``: how long processes may outlive
    the command before the run counts as ended. ``overwrite``: replace another run in ``out``. ``library``: runtime
    library; by default the package's own. ``on_wait``: called once with the processes that are waited for after the
    command has ended. ``on_changed``: called with the number of staged files whose copies are used, and the names of
    those that changed since they were copied. ``on_far``: called if the run directory is on a network file system or
    FUSE, with it, the type, and the directory on a disk of this host in which the run records instead, None if there is
    no such disk. ``follow``: arguments of the process that follows the run while it records (``record.follower``); None
    for no such process. ``follow_sockets``: that it takes over. Raises UsageError if there is no such command, or an
    option or the URL cannot be used. Raises CaptureError if the command cannot be started, or the directory cannot be
    used.
    """
    run = _Run(command, options, out, run_id, library)
    run.open_directories(scratch, overwrite, on_far)
    run.make_files(follow, on_changed)
    run.await_job(follow_sockets, grace_s, on_wait)
    return run.outcome()


class _Run:
    """A run, step by step: the methods are called in their order, with arguments of :func:`run_command`."""

    def __init__(
        self, command: Sequence[str], options: RecordOptions, out: str | None, run_id: str | None, library: str | None
    ) -> None:
        """Refuse what cannot be run before a directory is made."""
        self._command, self._options, self._out = command, options, out
        self._program = find_program(command)
        check_script(command)
        self._job = job_of(command, os.environ, run_id)
        run_id = self._job.run_id
        self._environment = traced_environment(os.environ, options, run_dir=".", run_id=run_id, library=library)
        self._url = out if out is not None and is_url(out) else ""
        if self._url:
            check_url(self._url)
        self._is_new = out is None or bool(self._url)
        self._is_made = self._is_new or not Path(str(out)).exists()
        self._facts = run_facts(command, self._job, options.recorded_collectors()) | options.to_run_facts()
        if (obstacle := preload_obstacle(self._program)) is not None:
            self._environment = without_library(self._environment)
            self._facts["not_recorded"] = f"{Path(self._program).name} ({obstacle})"
        self._goal: StepGoal | None = None
        self._follow: Sequence[str] | None = None
        self._follower: Follower | None = None
        #: Our files for the processes of the job.
        self._files: list[Path] = []

    def open_directories(
        self, scratch: str | None, overwrite: bool, on_far: Callable[[Path, str, Path | None], None] | None
    ) -> None:
        """Make the run directory, and the one on scratch in which the run records, with a ``run.json`` each."""
        with file_rights(self._options.share):
            records = make_scratch(scratch, self._job) if scratch is not None or self._url else None
            if records is None or not self._url:
                self._directory = prepare_directory(self._out, job=self._job, overwrite=overwrite)
            else:
                self._directory = records
            kind = far_file_system(self._directory) if records is None else ""
            if kind:
                near = near_folder()
                records = None if near is None else make_scratch(near, self._job)
                if on_far is not None:
                    on_far(self._directory, kind, records)
            self._began_in = os.stat(self._directory)
            elsewhere = {} if records in (None, self._directory) else {RECORDS: str(records)}
            self._launch_file = open_run_directory(self._directory, self._facts | elsewhere, self._job)
            self._records = records or self._directory
            if elsewhere:  # so that it can be merged in place if it is never copied to the directory
                write_run_file(self._records, self._facts | {RUN_DIRECTORY: str(self._directory)})

    def make_files(self, follow: Sequence[str] | None, on_changed: Callable[[int, Sequence[str]], None] | None) -> None:
        """Make our files for the job, and name them and its directories in its variables."""
        environment, options = self._environment, self._options
        environment["STASHTRACE_DIR"] = str(self._records)
        environment.pop("STASHTRACE_RUN_DIR", None)
        if self._records != self._directory:  # for processes on hosts and in containers that have no such folder
            environment["STASHTRACE_RUN_DIR"] = str(self._directory)
        if options.staged is not None:
            own_list = self._records / f"staged.{os.uname().nodename}.{os.getpid()}.list"
            self._files.append(own_list)
            with file_rights(options.share):
                usable_count, changed = list_for_run(Path(options.staged), own_list)
            environment["STASHTRACE_STAGED"] = str(own_list)
            if changed and on_changed is not None:
                on_changed(usable_count, changed)
        environment.pop("STASHTRACE_FOLLOWED", None)
        self._follow = [] if follow is None and options.idle else follow  # it says when an idle run records
        if self._follow is not None:
            with file_rights(options.share):
                self._files.append(make_control(self._records))
            environment["STASHTRACE_FOLLOWED"] = "1"

    def await_job(
        self, follow_sockets: Sequence[socket.socket], grace_s: float, on_wait: Callable[[Sequence[int]], None] | None
    ) -> None:
        """Start the command and what runs with it; wait until it has ended, and what it leaves behind."""
        self._goal = None if self._options.until_step is None else StepGoal(self._records)
        # While the job runs: NVML may take seconds to answer where the driver was not in use before.
        inventory = InventoryReader(os.environ) if os.path.exists(_NVIDIA_DEVICE) else None
        kills = MemoryKills()
        if self._follow is not None:
            is_elsewhere = self._records != self._directory
            words = [*self._follow, "--shared", str(self._directory)] if is_elsewhere else self._follow
            with file_rights(self._options.share):
                self._follower = Follower(self._records, words, os.environ, follow_sockets)
        devices = None
        try:
            with _Watch(self._goal, self._follower) as watch:
                self._start(watch)
                watch.wait_for_command()
                self._facts |= {"end_realtime_ns": time.time_ns(), "end_monotonic_ns": time.monotonic_ns()}
                if self._goal is not None and self._goal.reached:
                    self._goal.end_rest(lambda: [p for p in living_processes(self._records) if _is_below_us(p)])
                alone = self._launch_file is None
                self._survivors = watch.wait_for_stragglers(self._records, grace_s, on_wait, alone=alone)
                watch.take_pending()
        finally:
            if self._follower is not None:
                self._follower.end()
            for path in self._files:
                with contextlib.suppress(OSError):  # the file system may have died: the exit code is there all the same
                    path.unlink(missing_ok=True)
            devices = None if inventory is None else inventory.result()
        self._status, self._interrupts_count = watch.status or 0, watch.interrupts_count
        self._facts |= kills.facts() | ({} if devices is None else {GPU_INVENTORY: devices})

    def _start(self, watch: _Watch) -> None:
        try:
            watch.start(self._program, self._command, self._environment)
        except CaptureError:
            if self._launch_file is None:  # else other launchers of the job may record into it
                discard_run_without_records(self._directory, keep_folder=not self._is_made)
            raise

    def outcome(self) -> Outcome:
        """Say in ``run.json`` how the run ended, and return it."""
        number = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else 0
        code = 128 + number if number else os.waitstatus_to_exitcode(self._status)
        reached = self._goal is not None and self._goal.reached
        if self._goal is not None:
            self._goal.clear()
        if reached:  # we ended the command as asked, so its exit code does not count
            number = code = 0
            self._facts["until_step"] = self._options.until_step
        self._facts |= {"exit_code": code, "signal": number}
        if self._survivors:
            self._facts["outlived_by"] = ", ".join(map(str, self._survivors))
        replaced = was_replaced(self._directory, self._began_in)
        write_error = self._write_end(replaced=replaced)
        return Outcome(
            directory=self._directory,
            records=self._records,
            url=self._url,
            job=self._job,
            facts=self._facts,
            launch_file=self._launch_file,
            exit_code=code,
            signal_number=number,
            interrupts_count=self._interrupts_count,
            survivors=tuple(self._survivors),
            write_error=write_error,
            is_new=self._is_new,
            is_made=self._is_made,
            goal_reached=reached,
            replaced=replaced,
        )

    def _write_end(self, *, replaced: bool) -> CaptureError | None:
        """Write ``run.json``; return why that failed."""
        try:
            if self._follower is not None:  # it notes there where a run begins of which only the last steps are kept
                self._facts = {**read_run_file(self._records), **self._facts}
                self._facts.pop(RUN_DIRECTORY, None)
            if replaced:
                raise CaptureError(
                    f"another folder has taken the place of run directory {self._directory} during the run"
                )
            with file_rights(self._options.share):
                if self._launch_file is None:
                    write_run_file(self._directory, self._facts)
                if self._records != self._directory:
                    write_run_file(self._records, self._facts)
        except CaptureError as error:  # the disk has filled up: the run is readable, but looks unfinished
            return error
        return None


def open_run_directory(directory: Path, content: Mapping[str, Any], job: Job) -> Path | None:
    """Write ``run.json``; if the job may have several launchers, write this launcher's file too and return its path.

    Raises CaptureError if a file cannot be written, or another run has begun here.
    """
    first = claim_run_file(directory, content)
    return None if first and not job.name else announce(directory, content)


def adopted_processes(directory: Path) -> list[int]:
    """Return our children with the environment of the run that record, or may begin to.

    A daemon has no ring while it replaces its program, nor before its first record. It is our child, since we adopt
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
            continue  # it has ended, or we may not look at it
    return pids


def _children() -> list[int]:
    pids: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            pids += map(int, children.read_text(encoding="ascii").split())
        except (OSError, ValueError):
            continue  # the thread has ended
    return pids


def _is_new(place: Path) -> bool:
    """Return True for a process so young that its program may still be being loaded."""
    ticks = int(_stat_fields(place)[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") < _LOADING_S


def _adopt_orphans() -> None:
    """Become the parent of what the command leaves behind, so that its end is seen."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # stragglers are then found by their rings alone


class _Watch:
    """Starts a command and waits for it; takes the signals that arrive meanwhile.

    ``goal``: at which the command is ended. ``follower``: of the run. ``status``: exit status of the command, as
    ``waitpid`` gives it; None while it runs. ``interrupts_count``: how often Ctrl-C arrived.
    """

    def __init__(self, goal: StepGoal | None, follower: Follower | None) -> None:
        self.status: int | None = None
        self.interrupts_count = 0
        self._goal = goal
        self._follower = follower
        self._child = 0

    def __enter__(self) -> _Watch:
        self._old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have left it ignored: no exit status then
        # An ignored signal (nohup) stays ignored: for us, and for the command, which inherits it.
        self._signals = [s for s in FORWARDED if signal.getsignal(s) is not signal.SIG_IGN] + [signal.SIGCHLD]
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        self._witness = GroupWitness()
        return self

    def __exit__(self, *_: object) -> None:
        self._witness.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)

    def start(self, program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command. Raises CaptureError if the system refuses."""
        _adopt_orphans()
        self._child = spawn(program, command, environment, self._old_mask)

    def wait_for_command(self) -> None:
        """Wait until the command has ended; end it when its goal is reached."""
        self._reap()
        while self.status is None:
            info = signal.sigtimedwait(self._signals, _LOOK_S if self._goal is None else _POLL_S)
            if info is not None:
                self._take(info)
            elif self._goal is not None and (number := self._goal.signal_now()):
                os.kill(self._child, number)  # not reaped yet, so the number is still the command's
            self._reap()

    def wait_for_stragglers(
        self, directory: Path, grace_s: float, on_wait: Callable[[Sequence[int]], None] | None, *, alone: bool
    ) -> list[int]:
        """Wait until the processes of the run have ended; return those that still run after ``grace_s``.

        ``directory``: where they write. ``on_wait``: called with them once, when they have been waited for a second.
        ``alone``: whether all processes that write there are ours; else those of other launchers are left out.
        """

        def living() -> list[int]:
            pids = living_processes(directory)
            ours = pids if alone else [pid for pid in pids if _is_below_us(pid)]
            return sorted({*ours, *adopted_processes(directory)})

        begin_s = time.monotonic()
        was_empty = False
        while True:
            self._reap()
            left = living()
            waited_s = time.monotonic() - begin_s
            # A child that replaces its program at this moment shows neither environment nor library: look once more.
            may_begin = not left and not was_empty and bool(_children())
            if (not left and not may_begin) or waited_s >= grace_s:
                return left
            was_empty = not left
            if left and on_wait is not None and waited_s > 1.0:
                on_wait(left)
                on_wait = None
            info = signal.sigtimedwait(self._signals, _POLL_S)
            if info is not None:
                self._take(info)
                if info.si_signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                    return living()

    def take_pending(self) -> None:
        """Take signals that are pending still; they would end us when the mask is lifted, and the outcome be lost."""
        while (info := signal.sigtimedwait(self._signals, 0)) is not None:
            self._take(info)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self.status = status

    def _take(self, info: signal.struct_siginfo) -> None:
        """Act on one signal that reached us."""
        number, sender = info.si_signo, info.si_pid
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGINT:
            self.interrupts_count += 1
        asks = number == signal.SIGUSR2 and self._follower is not None
        if asks and self._follower is not None and not self._follower.ask_for_window():
            sys.stderr.write("stashtrace: no window is sealed at SIGUSR2: the run is no longer followed\n")
        other = None
        if self.status is None:
            reached_group = self._witness.settle(number, sender, by_terminal=info.si_code == _SI_KERNEL)
            if reached_group:
                # Sent to us and to the group, it may be pending a second time; both count as one.
                again = signal.sigtimedwait([number], 0)
                if again is not None and again.si_pid == sender:
                    self._witness.sent_to_group(number, sender)
                else:
                    other = again
            # A job that left our group did not get what the group got; a terminal knows where the job is.
            missed = not reached_group or (sender != 0 and not _is_in_our_group(self._child))
            if missed and not (asks and not _has_handler(self._child, number)):
                try:
                    os.kill(self._child, number)
                except ProcessLookupError:
                    return
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)  # the shell sees the job stopped, as it would without us
        if other is not None:
            self._take(other)


def _is_in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return True  # it has ended and cannot be signalled any more


def _has_handler(pid: int, number: int) -> bool:
    """Return whether a process handles a signal itself; False if that is unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _is_below_us(pid: int) -> bool:
    """Return True for descendants of this process; others of the run belong to other launchers of the job."""
    own = os.getpid()
    while pid > 1 and pid != own:
        try:
            pid = int(_stat_fields(Path(f"/proc/{pid}"))[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == own


def _stat_fields(place: Path) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name of the program, which may hold blanks."""
    return (place / "stat").read_text(errors="replace").rpartition(")")[2].split()


def run_facts(command: Sequence[str], job: Job, collectors: Sequence[str]) -> dict[str, Any]:
    """Return the content of ``run.json`` at the start of a run."""
    commit = commit_of(Path.cwd(), os.environ)
    return {
        "format": 1,
        "run_id": job.run_id,
        **({"job": job.name, "launchers_count": job.launchers_count} if job.name else {}),
        "command": scrub_arguments(command),
        "working_directory": os.getcwd(),
        **({"commit": commit} if commit else {}),
        "begin_realtime_ns": time.time_ns(),
        "begin_monotonic_ns": time.monotonic_ns(),
        "host": os.uname().nodename,
        "boot_id": _boot_id(),
        "collectors": list(collectors),
        "stashtrace_version": __version__,
        "launcher_pid": os.getpid(),
        "place": own_place(),
        "gpu_driver": "present" if any(map(os.path.exists, _GPU_DEVICES)) else "none",
        "cpu": processor_name(),
        "cores_count": len(os.sched_getaffinity(0)),
    }


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


# The end of a run at a given step. A rank that has made this many steps leaves an empty file in the run directory
# (``probes.process``); the name holds the host and the number of its ranks.

#: Ranks are in step, but a file may come late: the others are waited for this long.
_OTHERS_S = 5.0
#: From SIGTERM to SIGKILL: for the command, and for processes that it leaves behind.
_PATIENCE_S, _REST_S = 20.0, 3.0


class StepGoal:
    """Finds out when the ranks of this host have made the steps of ``until_step``, and how to end the command.

    ``directory``: where the processes of this host write. ``reached``: whether the ranks made their steps and the
    command was asked to end.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._first_s = 0.0
        self._asked_s = 0.0
        self.reached = False

    def signal_now(self) -> int:
        """Return the signal to send to the command now: SIGTERM once, later SIGKILL, otherwise 0."""
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
        """End ranks that outlive the command; a shell, for one, does not pass signals on."""
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
        """Return the files of this host; other hosts may write into the same directory."""
        return list(self._directory.glob(f"{os.uname().nodename}.*.reached"))
