"""The run directory: making it, its ``run.json``, its access rights, and local scratch in its place.

``record.run`` prepares the directory before it starts anything, so that a full disk or a directory in use costs the
user nothing. The files of processes are made by the recorder, never here.

Processes may write to local scratch, since a shared file system may be slow, and mapped files on it slower; but a local
disk is lost with its host. When they have ended, their files are copied to the run directory, each under a temporary
name first, so that a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import fnmatch
import itertools
import json
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, say_why
from stashtrace.files.run_facts import host_file, read_facts
from stashtrace.files.whole_files import claim_file, open_regular, remove_left_in, try_folder, whole_file, write_whole
from stashtrace.record.launchers import RECORDS, Job, all_ended, is_gone, launchers, own_place

RUN_FILE = "run.json"
#: Of files of processes; a process may have both.
TRACE_SUFFIXES = (".stash", ".ring")
#: What a merge that was killed leaves, samplers of GPUs, and ranks that reached the step of ``until_step``.
_LEFT_SUFFIXES = (".stash.tmp", ".nvml.lock", ".reached")
#: What the merge adds.
TIMELINE_FILE, SUMMARY_FILE = "timeline.pftrace.gz", "summary.txt"
#: What the process that follows a run writes next to its windows; these are never removed with it.
_OF_FOLLOWER = ("live-*.json", "live-*.rows", "events-*.jsonl", "capture-*.request", "control-*", host_file("*"))
#: Folder in which the processes that follow a run report the ranks of their hosts to each other.
HOSTS_FOLDER = "hosts"
#: Folder of the windows that it seals.
WINDOWS_FOLDER = "windows"
#: Fact of the ``run.json`` on local scratch, while a run records there: its run directory.
RUN_DIRECTORY = "run_directory"
_OWN_UMASK, _GROUP_UMASK = 0o077, 0o027
#: A ring takes about a MiB per recording thread; with less than this the first step would not fit.
SMALLEST_FREE_BYTES = 16 << 20
#: Files that a message lists.
_FILES_NAMED = 3


@contextlib.contextmanager
def file_rights(share: bool) -> Iterator[None]:
    """Give new files to the user alone, or with ``share`` let the group read them, whatever the umask.

    Start nothing of the user's inside: it would inherit the umask.
    """
    before = os.umask(_GROUP_UMASK if share else _OWN_UMASK)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def rights_of_run(directory: Path) -> Iterator[None]:
    """Give new files the rights of the ``run.json`` of a directory; without one nothing changes.

    Those who may read may also enter new folders.
    """
    try:
        mode = (directory / RUN_FILE).stat().st_mode
        is_own = (directory / RUN_FILE).lstat().st_uid == os.geteuid()
    except OSError:
        yield
        return
    before = os.umask(0o077)
    # Another user's, who may have put it there, gives no right that the umask takes.
    os.umask(0o777 & ~(mode | (mode & 0o444) >> 2) | (0 if is_own else before))
    try:
        yield
    finally:
        os.umask(before)


def prepare_directory(
    out: str | None, *, job: Job | None = None, now: time.struct_time | None = None, overwrite: bool = False
) -> Path:
    """Make or accept the directory of a new run, or join the one that another launcher of the job has made.

    ``out``: the user's choice; by default ``./stash-MMDD-HHMMSS``, or ``./stash-JOB`` if the job has a name. ``job``:
    the job that this launcher is a part of. ``now``: time for the default name. ``overwrite``: replace another run in
    ``out``. The path is absolute. Raises CaptureError if the directory cannot be written, is full, or holds another
    run, or to overwrite it would remove other files.
    """
    if out is None:
        path = _make_default(job, now or time.localtime())
    else:
        path = Path(out)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _write_error(path, error) from error
        if overwrite and holds_other_run(path, job):
            _remove_run(path)
        elif holds_other_run(path, job):
            named = "" if job is None or job.name else ", or give --run-id JOB on every host if this is a part of it"
            raise CaptureError(
                f"run directory {path} already holds a run{_age(path)}",
                hint=f"choose another with `--out DIR`, or replace it with --overwrite{named}",
            )
    _try_to_write(path)
    return path.absolute()


def holds_other_run(path: Path, job: Job | None) -> bool:
    """Return True for a directory with records that must not be mixed with a run of ``job``.

    Raises CaptureError if the directory cannot be listed.
    """
    try:
        names = os.listdir(path)
    except OSError as error:
        raise _write_error(path, error) from error
    if RUN_FILE not in names:
        return any(name.endswith(TRACE_SUFFIXES) for name in names)
    if job is None or not job.name or read_run_file(path).get("run_id") != job.run_id:
        return True
    # The name of a rendezvous may be used again, so a finished run with that name is another one.
    return not job.unique and all_ended(path, job.launchers_count)


def is_part_of_run(name: str) -> bool:
    """Return True for the names of files that ``run``, ``merge`` and the job's recorders write into a run directory."""
    is_launch = name.startswith("launch.") and name.endswith(".json")
    is_list = name.startswith("staged.") and name.endswith(".list")
    is_left = name.endswith((*TRACE_SUFFIXES, *_LEFT_SUFFIXES))
    is_of_follower = any(fnmatch.fnmatchcase(name, pattern) for pattern in _OF_FOLLOWER)
    return name in (RUN_FILE, TIMELINE_FILE, SUMMARY_FILE) or is_left or is_launch or is_list or is_of_follower


def remove_reported(directory: Path) -> None:
    """Remove what hosts reported to each other of their ranks: the recording has all of it. Other files there stay."""
    with contextlib.suppress(OSError):
        for path in sorted((directory / HOSTS_FOLDER).iterdir()):
            if path.name.endswith(TRACE_SUFFIXES) and not path.is_dir():
                path.unlink()
        (directory / HOSTS_FOLDER).rmdir()


def _remove_run(path: Path) -> None:
    """Remove the files of a run from its directory.

    Raises CaptureError if nothing says that it is a run of ours, if it is still recorded, or if other files are in the
    directory.
    """
    kept = "--overwrite replaces nothing but a run"
    if "run_id" not in read_run_file(path):
        raise CaptureError(
            f"run directory {path} is not overwritten: no readable {RUN_FILE} says that it holds a run",
            hint=f"{kept}: remove the directory yourself, or choose another with `--out DIR`",
        )
    try:
        remove_left_in(path)
        remove_reported(path)
        entries = sorted(path.iterdir())
        other = [file.name for file in entries if not is_part_of_run(file.name) or file.is_dir()]
        if other:
            named = ", ".join(other[:_FILES_NAMED]) + ", ..." * (len(other) > _FILES_NAMED)
            raise CaptureError(
                f"run directory {path} is not overwritten: it also holds {named}",
                hint=f"{kept}: move these files away, or choose another directory with `--out DIR`",
            )
        writing = living_processes(path)
        if writing:
            raise CaptureError(
                f"run directory {path} is not overwritten: process {writing[0]} still writes into it",
                hint="wait until that job has ended, or choose another directory with `--out DIR`",
            )
        # run.json goes last: an interrupt leaves a directory that can be overwritten.
        for file in sorted(entries, key=lambda file: file.name == RUN_FILE):
            file.unlink()
    except OSError as error:
        raise _write_error(path, error) from error


def living_processes(directory: Path) -> list[int]:
    """Return the processes of this host that have a ring of the run open now; none if the directory cannot be read."""
    pids = []
    try:
        rings = list(directory.glob("*.ring"))
    except OSError:
        return []  # its file system has died
    for ring in rings:
        pid = ring.name.split(".")[-3]
        try:
            # The mapping shows that it is the process that made the ring, and not a later one with its number.
            if ring.name in Path(f"/proc/{pid}/maps").read_text(errors="replace"):
                pids.append(int(pid))
        except OSError:
            continue  # it has ended, or we may not look at it
    return pids


def discard_run_without_records(directory: Path, *, keep_folder: bool = False) -> None:
    """Remove what a run left that recorded nothing, and its directory unless that is to be kept."""
    if trace_files(directory) or "not_recorded" in read_run_file(directory):  # why there is nothing is worth keeping
        return
    with contextlib.suppress(OSError):  # it is no longer ours to remove; what stays is no run for anybody
        (directory / RUN_FILE).unlink(missing_ok=True)
        if not keep_folder:
            directory.rmdir()


def read_run_file(directory: Path) -> dict[str, Any]:
    """Return the content of ``run.json``, empty if it is missing or damaged."""
    try:
        return read_facts(directory / RUN_FILE)
    except (OSError, ValueError):
        return {}


def claim_run_file(directory: Path, content: Mapping[str, Any]) -> bool:
    """Write ``run.json`` in one step unless another launcher of the job has; return True if this launcher wrote it.

    Raises CaptureError if it cannot be written, or another run has just begun here.
    """
    try:
        if claim_file(directory / RUN_FILE, json.dumps(content, indent=1) + "\n"):
            return True
    except OSError as error:
        raise _write_error(directory, error) from error
    if read_run_file(directory).get("run_id") != content["run_id"]:
        raise CaptureError(
            f"run directory {directory} already holds a run{_age(directory)}", hint="choose another with `--out DIR`"
        )
    return False


def write_run_file(directory: Path, content: Mapping[str, Any]) -> None:
    """Replace ``run.json`` in one step, so that a reader never sees half of it.

    Raises CaptureError if it cannot be written.
    """
    try:
        write_whole(directory / RUN_FILE, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise _write_error(directory, error) from error


def update_host_facts(directory: Path, host: str, facts: Mapping[str, Any]) -> None:
    """Add facts to the file of a host in a run or window (``run_facts.host_file``): each follower writes only its file.

    Errors of the system are raised as they are.
    """
    path = directory / host_file(host)
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_facts(path)
    write_whole(path, json.dumps({**known, "host": host, **facts}, indent=1) + "\n")


def was_replaced(directory: Path, began_in: os.stat_result) -> bool:
    """Return True if another folder now has the name of the one in which a run began."""
    try:
        now = os.stat(directory)
    except OSError:
        return False  # that is reported by who writes into it, and so is a file in its place
    return stat.S_ISDIR(now.st_mode) and not os.path.samestat(now, began_in)


def _make_default(job: Job | None, now: time.struct_time) -> Path:
    named = job is not None and job.name
    stem = f"stash-{job.name}" if job is not None and job.name else time.strftime("stash-%m%d-%H%M%S", now)
    for number in itertools.count(1):
        path = Path(stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:  # begun within one second, or by another host of the job
            if not named or not path.is_dir() or holds_other_run(path, job):
                continue
        except OSError as error:
            raise _write_error(path, error) from error
        break
    return path


def _try_to_write(path: Path) -> None:
    try:
        free_bytes, others = try_folder(path)
    except OSError as error:
        raise _write_error(path, error) from error
    if others:
        raise CaptureError(
            f"{others} may replace what is written into {path}",
            hint=f"let a run directory of yours be made in it: `--out {path / 'NAME'}`",
        )
    if free_bytes < SMALLEST_FREE_BYTES:
        raise CaptureError(
            f"run directory {path} has only {free_bytes / 2**20:.1f} MiB of free space",
            hint=f"a run needs at least {SMALLEST_FREE_BYTES >> 20} MiB; choose another place with `--out DIR`",
        )


def _write_error(path: Path, error: OSError) -> CaptureError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CaptureError(f"run directory {path} is full", hint="choose another place with `--out DIR`")
    reason = say_why(error)
    return CaptureError(
        f"cannot write into run directory {path}: {reason}", hint="choose another place with `--out DIR`"
    )


def _age(path: Path) -> str:
    begin_ns = read_run_file(path).get("begin_realtime_ns")
    return "" if begin_ns is None else time.strftime(", begun %Y-%m-%d %H:%M:%S", time.localtime(begin_ns // 10**9))


def make_scratch(root: str | None, job: Job) -> Path:
    """Make a directory for this launcher alone below ``root``, by default below the one for temporary files.

    Raises CaptureError if it cannot be made.
    """
    place = Path(root if root is not None else tempfile.gettempdir())
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"stash-{job.run_id[:8]}-{os.uname().nodename}-", dir=place)).absolute()
    except OSError as error:
        raise CaptureError(
            f"cannot write into scratch directory {place}: {say_why(error)}",
            hint="choose another with `--scratch DIR`",
        ) from error


def run_directory_of(path: Path) -> Path:
    """Return the run directory of a directory on local scratch in which a run records; any other path as it is."""
    directory = Path(str(read_run_file(path).get(RUN_DIRECTORY, "")) or path) if path.is_dir() else path
    return directory if directory.is_dir() and _is_named(path, directory, RECORDS) else path


def scratch_of(directory: Path) -> Path | None:
    """Return the directory on local scratch in which a run records on this host; None if there is none."""
    for facts in (read_run_file(directory), *launchers(directory)):
        records = Path(str(facts.get(RECORDS, "")))
        here = facts.get("place") == own_place() and records.is_absolute()
        if here and records.is_dir() and _is_named(directory, records, RUN_DIRECTORY):
            return records
    return None


def _is_named(path: Path, other: Path, fact: str) -> bool:
    """Whether the files of the other directory name this one: else a run from elsewhere would lead to any folder."""
    named = (Path(str(facts.get(fact) or path / "none")) for facts in (read_run_file(other), *launchers(other)))
    return any(one.is_dir() and one.samefile(path) for one in named)


def left_on_scratch(directory: Path) -> list[Path]:
    """Return directories of this host in which launchers of a run recorded that died before they copied the records.

    Each says itself that it belongs to this run and to this user: what the run directory names alone is not believed.
    """
    left = []
    for facts in (read_run_file(directory), *launchers(directory)):
        records = Path(str(facts.get(RECORDS, "")))
        if not records.is_absolute() or not is_gone(facts) or living_processes(records):
            continue
        with contextlib.suppress(OSError):
            if records.lstat().st_uid == os.geteuid() and _is_named(directory, records, RUN_DIRECTORY):
                left.append(records)
    return list(dict.fromkeys(left))


def trace_files(directory: Path) -> list[Path]:
    """Return the files of processes in a directory, each ``.stash`` before its ``.ring``; none if it does not exist."""
    if not directory.is_dir():
        return []
    files = [path for path in directory.iterdir() if path.suffix in TRACE_SUFFIXES]
    return sorted(files, key=lambda path: (path.stem, path.suffix != TRACE_SUFFIXES[0]))


def copy_process(source: Path, target: Path) -> None:
    """Copy a ``.stash``, and its ``.ring`` if it has one; ``source`` and ``target`` are paths without suffix.

    The ring is copied first, since a ``.stash`` without one reads as complete. The caller removes what a killed copy
    left behind, with ``whole_files.remove_left_in``, once for all processes. Raises OSError if there is no room or no
    permission.
    """
    for suffix in reversed(TRACE_SUFFIXES):
        file = source.with_name(source.name + suffix)
        if file.exists():
            _copy(file, target.with_name(target.name + suffix))


def copy_host_facts(source: Path, target: Path) -> None:
    """Copy what the followers of a run know to another directory of it, except for hosts that have written there."""
    for known in sorted(source.glob(host_file("*"))):
        if not (target / known.name).exists():
            _copy(known, target / known.name)


def free_stem(directory: Path, stem: str) -> str:
    """Return a name for a process's files that is free in ``directory``; ``HOST.PID.N`` gets the next free N."""
    host_and_pid, _, number = stem.rpartition(".")
    count = int(number) if number.isdecimal() else 0
    while any((directory / (stem + suffix)).exists() for suffix in TRACE_SUFFIXES):
        count += 1
        stem = f"{host_and_pid}.{count}"
    return stem


def bring_home(records: Path, directory: Path) -> None:
    """Copy the files of all processes from scratch into the run directory, then remove the scratch directory.

    Raises CaptureError if a copy fails; the scratch directory stays.
    """
    try:
        remove_left_in(directory)
        for stem in sorted({path.name.rpartition(".")[0] for path in trace_files(records)}):
            copied = directory / f"{stem}.stash"
            if copied.exists() and filecmp.cmp(records / copied.name, copied, shallow=False):
                continue  # by an earlier attempt
            copy_process(records / stem, directory / free_stem(directory, stem))
        copy_host_facts(records, directory)
    except OSError as error:
        merge = shlex.join(["stashtrace", "merge", str(directory), str(records)])
        raise CaptureError(
            f"cannot copy the records from {records} to {directory}: {say_why(error)}",
            hint=f"they are kept; `{merge}` brings them together",
        ) from error
    shutil.rmtree(records, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    os.close(open_regular(source))  # a device would be copied without end
    with whole_file(target, own_mode=True, tidy=False) as partial:
        shutil.copyfile(source, partial)
        shutil.copystat(source, partial)
