"""Local scratch: processes write there, and what they wrote is brought to the run directory when they have ended.

A shared file system may be slow, and a mapped file on it slower; a local one is lost with its host. The files are
copied under a name of their own first, so that a reader of the run directory never sees half of one.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from pathlib import Path

from stashtrace.errors import CaptureError
from stashtrace.launch.job import Job
from stashtrace.whole_files import remove_left_in, whole_file

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
