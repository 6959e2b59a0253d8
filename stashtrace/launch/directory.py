"""The run directory: where it may be, that it can hold a run, and its ``run.json``.

Called by ``launch.run`` before anything is started, so that a full disk or a directory in use costs
the user nothing. Files of processes are made by the recorder itself, never here.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError

RUN_FILE = "run.json"
#: A ring takes about a MiB per recording thread; with less than this the first step would not fit.
SMALLEST_FREE_BYTES = 16 << 20
_TRACE_SUFFIXES = (".stash", ".ring")


def prepare_directory(out: str | None, *, now: time.struct_time | None = None) -> Path:
    """Make or accept the directory of a new run.

    Parameters
    ----------
    out : str, optional
        What the user asked for; ``./stash-MMDD-HHMMSS`` if nothing.
    now : struct_time, optional
        For the default name.

    Raises
    ------
    CaptureError
        If it cannot be written, is full, or holds another run.
    """
    path = Path(out) if out is not None else _default_name(now or time.localtime())
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = os.listdir(path)
    except OSError as error:
        raise _refused(path, error) from error
    if RUN_FILE in names or any(name.endswith(_TRACE_SUFFIXES) for name in names):
        raise CaptureError(
            f"run directory {path} already holds a run{_age(path)}",
            hint="choose another with `--out DIR`, or remove it if it is not needed",
        )
    _try_to_write(path)
    return path.absolute()


def write_run_file(directory: Path, content: Mapping[str, Any]) -> None:
    """Replace ``run.json`` in one step, so that a reader never sees half of it.

    Raises
    ------
    CaptureError
        If it cannot be written.
    """
    temporary = directory / (RUN_FILE + ".tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(temporary, directory / RUN_FILE)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _refused(directory, error) from error


def _default_name(now: time.struct_time) -> Path:
    stem = time.strftime("stash-%m%d-%H%M%S", now)
    candidate, number = Path(stem), 2
    while candidate.exists():  # two runs begun within one second
        candidate, number = Path(f"{stem}-{number}"), number + 1
    return candidate


def _try_to_write(path: Path) -> None:
    probe = path / ".stashtrace-probe"
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
    try:
        begin_ns = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))["begin_realtime_ns"]
        return time.strftime(", begun %Y-%m-%d %H:%M:%S", time.localtime(begin_ns // 10**9))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
