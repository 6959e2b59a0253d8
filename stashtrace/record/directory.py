"""The run directory: where it may be, that it can hold a run, and its ``run.json``.

Called by ``record.run`` before anything is started, so that a full disk or a directory in use costs
the user nothing. Files of processes are made by the recorder itself, never here.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import errno
import filecmp
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError
from stashtrace.record.job import Job
from stashtrace.record.launchers import all_ended
from stashtrace.run_facts import json_object, sound_facts
from stashtrace.whole_files import claim_file, remove_left_in, whole_file, write_whole

RUN_FILE = "run.json"
_OWN_UMASK, _GROUP_UMASK = 0o077, 0o027
#: A ring takes about a MiB per recording thread; with less than this the first step would not fit.
SMALLEST_FREE_BYTES = 16 << 20
_TRACE_SUFFIXES = (".stash", ".ring")


@contextlib.contextmanager
def file_rights(share: bool) -> Iterator[None]:
    """Let what is made meanwhile belong to the user alone, or with ``share`` be read by the group; whatever the umask.

    Nothing of the user's may be started meanwhile: it would inherit this.
    """
    before = os.umask(_GROUP_UMASK if share else _OWN_UMASK)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def rights_of_run(directory: Path) -> Iterator[None]:
    """As :func:`file_rights`, after the example of the ``run.json`` of a directory; without one nothing changes.

    A folder that is made meanwhile may be entered by those who may read.
    """
    try:
        mode = (directory / RUN_FILE).stat().st_mode
    except OSError:
        yield
        return
    before = os.umask(0o777 & ~(mode | (mode & 0o444) >> 2))
    try:
        yield
    finally:
        os.umask(before)


def prepare_directory(out: str | None, *, job: Job | None = None, now: time.struct_time | None = None) -> Path:
    """Make or accept the directory of a new run, or join the one that another launcher of the same job has made.

    Parameters
    ----------
    out : str, optional
        What the user asked for; ``./stash-MMDD-HHMMSS`` if nothing, or ``./stash-JOB`` for a part of a job.
    job : Job, optional
        Which job this launcher is a part of.
    now : struct_time, optional
        For the default name.

    Raises
    ------
    CaptureError
        If it cannot be written, is full, or holds another run.
    """
    if out is None:
        path = _make_default(job, now or time.localtime())
    else:
        path = Path(out)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(path, error) from error
        if holds_other_run(path, job):
            named = "" if job is None or job.name else ", or give --run-id JOB on every host if this is a part of it"
            raise CaptureError(
                f"run directory {path} already holds a run{_age(path)}",
                hint=f"choose another with `--out DIR`, or remove it if it is not needed{named}",
            )
    _try_to_write(path)
    return path.absolute()


def holds_other_run(path: Path, job: Job | None) -> bool:
    """Whether a directory holds records that a run of ``job`` must not be mixed with."""
    try:
        names = os.listdir(path)
    except OSError as error:
        raise _refused(path, error) from error
    if RUN_FILE not in names:
        return any(name.endswith(_TRACE_SUFFIXES) for name in names)
    if job is None or not job.name or read_run_file(path).get("run_id") != job.run_id:
        return True
    # The name of a rendezvous is used again, so a finished run under it is another one.
    return not job.unique and all_ended(path, job.launchers_count)


def read_run_file(directory: Path) -> dict[str, Any]:
    """Content of ``run.json``, empty if there is none or it is damaged."""
    try:
        return sound_facts(json_object((directory / RUN_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def claim_run_file(directory: Path, content: Mapping[str, Any]) -> bool:
    """Write ``run.json`` unless another launcher of the job has, whole and in one step; whether it was us.

    Raises
    ------
    CaptureError
        If it cannot be written, or another run was begun here a moment ago.
    """
    try:
        if claim_file(directory / RUN_FILE, json.dumps(content, indent=1) + "\n"):
            return True
    except OSError as error:
        raise _refused(directory, error) from error
    if read_run_file(directory).get("run_id") != content["run_id"]:
        raise CaptureError(
            f"run directory {directory} already holds a run{_age(directory)}",
            hint="choose another with `--out DIR`",
        )
    return False


def write_run_file(directory: Path, content: Mapping[str, Any]) -> None:
    """Replace ``run.json`` in one step, so that a reader never sees half of it.

    Raises
    ------
    CaptureError
        If it cannot be written.
    """
    try:
        write_whole(directory / RUN_FILE, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise _refused(directory, error) from error


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
            raise _refused(path, error) from error
        break
    return path


def _try_to_write(path: Path) -> None:
    probe = path / f".stashtrace-probe.{os.uname().nodename}.{os.getpid()}"
    try:
        with open(probe, "wb") as file:
            file.write(b"\0" * 65536)
        room = os.statvfs(path)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        probe.unlink(missing_ok=True)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < SMALLEST_FREE_BYTES:
        raise CaptureError(
            f"run directory {path} has only {free_bytes / 2**20:.1f} MiB of free space",
            hint=f"a run needs at least {SMALLEST_FREE_BYTES >> 20} MiB; choose another place with `--out DIR`",
        )


def _refused(path: Path, error: OSError) -> CaptureError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CaptureError(f"run directory {path} is full", hint="choose another place with `--out DIR`")
    reason = (error.strerror or str(error)).lower()
    return CaptureError(
        f"cannot write into run directory {path}: {reason}", hint="choose another place with `--out DIR`"
    )


def _age(path: Path) -> str:
    begin_ns = read_run_file(path).get("begin_realtime_ns")
    return "" if begin_ns is None else time.strftime(", begun %Y-%m-%d %H:%M:%S", time.localtime(begin_ns // 10**9))


# Local scratch: processes write there, and what they wrote is brought to the run directory when they have ended.
#
# A shared file system may be slow, and a mapped file on it slower; a local one is lost with its host. The files are
# copied under a name of their own first, so that a reader of the run directory never sees half of one.

TRACE_SUFFIXES = (".stash", ".ring")


def make_scratch(root: str | None, job: Job) -> Path:
    """Make a directory of this launcher's own below ``root``, by default below the one for temporary files.

    Raises
    ------
    CaptureError
        If it cannot be made.
    """
    place = Path(root if root is not None else tempfile.gettempdir())
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"stash-{job.run_id[:8]}-{os.uname().nodename}-", dir=place)).absolute()
    except OSError as error:
        raise CaptureError(
            f"cannot write into scratch directory {place}: {(error.strerror or str(error)).lower()}",
            hint="choose another with `--scratch DIR`",
        ) from error


def trace_files(directory: Path) -> list[Path]:
    """Files of processes in a directory, which need not exist; a ``.stash`` before its ``.ring``."""
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if path.suffix in TRACE_SUFFIXES]
    return sorted(found, key=lambda path: (path.stem, path.suffix != TRACE_SUFFIXES[0]))


def copy_process(source: Path, target: Path) -> None:
    """Copy a ``.stash``, and its ``.ring`` if it has one, to a stem (a path without suffix) in another directory.

    The ring goes first: a file without its ring reads as complete. What a killed copy left there is removed by
    ``whole_files.remove_left_in``, which is called once for all processes.

    Raises
    ------
    OSError
        If there is no room or no permission.
    """
    for suffix in reversed(TRACE_SUFFIXES):
        file = source.with_name(source.name + suffix)
        if file.exists():
            _copy(file, target.with_name(target.name + suffix))


def free_stem(directory: Path, stem: str) -> str:
    """Name for a process file that is not taken; ``HOST.PID.N`` becomes the next N."""
    host_and_pid, _, number = stem.rpartition(".")
    count = int(number) if number.isdecimal() else 0
    while any((directory / (stem + suffix)).exists() for suffix in TRACE_SUFFIXES):
        count += 1
        stem = f"{host_and_pid}.{count}"
    return stem


def bring_home(records: Path, directory: Path) -> None:
    """Copy all process files from scratch into the run directory, then remove the scratch directory.

    Raises
    ------
    CaptureError
        If the copy fails; the scratch directory is then left as it is.
    """
    try:
        remove_left_in(directory)
        for stem in sorted({path.name.rpartition(".")[0] for path in trace_files(records)}):
            same = directory / f"{stem}.stash"
            if same.exists() and filecmp.cmp(records / same.name, same, shallow=False):
                continue  # brought by an attempt before
            copy_process(records / stem, directory / free_stem(directory, stem))
    except OSError as error:
        raise CaptureError(
            f"cannot copy the records from {records} to {directory}: {(error.strerror or str(error)).lower()}",
            hint=f"they are kept; `stashtrace merge {directory} {records}` brings them together",
        ) from error
    shutil.rmtree(records, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    with whole_file(target, own_mode=True, tidy=False) as partial:
        shutil.copyfile(source, partial)
        shutil.copystat(source, partial)
