"""Files that a job reads in its steps, by what was recorded of a run: those whose place in the cache matters."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stashtrace.align.align import load_trace
from stashtrace.analysis.steps import steps
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import IoFlag, IoOp, ProcessRole
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

_READS = (IoOp.READ, IoOp.PREAD, IoOp.READV, IoOp.PREADV, IoOp.FREAD, IoOp.SENDFILE)
#: Direct I/O goes past the page cache.
_NO_FILE = int(IoFlag.SOCKET | IoFlag.PIPE | IoFlag.DIRECT)
_LIBRARIES = re.compile(r"\.so(\.\d+)*$|\.py[cdiow]?$|\.pth$|\.(dist|egg)-info/|/__pycache__/")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/share/locale/")


@dataclass(frozen=True, slots=True)
class FileSet:
    """Regular files of this machine.

    Attributes
    ----------
    paths : tuple of str
        Absolute, without symbolic links, sorted.
    bytes : int
        Their sizes together.
    left_out : tuple of (path, reason)
        What was asked for and is not among them.
    """

    paths: tuple[str, ...]
    bytes: int
    left_out: tuple[tuple[str, str], ...] = ()


def files_read(source: Trace | str | os.PathLike[str], *, libraries: bool = False) -> FileSet:
    """Files that ranks and their workers read or mapped while they made steps, as far as they are on this machine.

    Reads before the first step are left out: they are not repeated in a step. A mapping counts whenever it was made,
    since what is read through it is not seen.

    Parameters
    ----------
    source : Trace or path
        A run, which needs I/O calls, or its directory.
    libraries : bool
        Also code: shared objects, Python files, what lies in the system's folders.

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    trace = source if isinstance(source, Trace) else load_trace(Path(source))
    if not trace.io_rows_count:
        raise MissingDataError("no I/O call was recorded", hint="run with the collector posix_io on")
    here = socket.gethostname()
    processes, tracks = trace.processes, trace.tracks
    wanted = np.isin(processes["role_code"], (ProcessRole.RANK, ProcessRole.WORKER)) | (processes["rank"] >= 0)
    local = np.array([trace.text(code) in ("", here) for code in processes["host_code"].tolist()], dtype=bool)
    of_job = np.isin(tracks["process_id"], processes["process_id"][wanted])
    on_host = of_job & np.isin(tracks["process_id"], processes["process_id"][wanted & local])
    begin, end = _window(trace)
    seen = np.zeros((2, len(trace.strings)), dtype=bool)
    for piece in trace.io_pieces():
        used = _uses_data(piece, begin, end)
        for row, chosen in enumerate((on_host, of_job)):
            ours = used & np.isin(piece["track_id"], tracks["track_id"][chosen])
            seen[row, piece["path_code"][ours]] = True
    elsewhere = [(trace.text(code), "read on another host") for code in np.flatnonzero(seen[1] & ~seen[0]).tolist()]
    paths = [trace.text(code) for code in np.flatnonzero(seen[0]).tolist()]
    found = file_set(path for path in paths if path and (libraries or not is_library(path)))
    left = [(path, why) for path, why in elsewhere if path and (libraries or not is_library(path))]
    return replace(found, left_out=(*found.left_out, *left))


def is_library(path: str) -> bool:
    """Whether a path is that of code, or of something that the system makes up.

    Examples
    --------
    >>> is_library("/usr/lib/libm.so.6"), is_library("/data/a.pyc"), is_library("/data/train.tar")
    (True, True, False)
    """
    return path.startswith(_SYSTEM) or _LIBRARIES.search(path) is not None


def file_set(paths: Iterable[str | os.PathLike[str]]) -> FileSet:
    """Regular files among paths; folders stand for all files below them."""
    sizes: dict[str, int] = {}
    left: list[tuple[str, str]] = []
    for given in paths:
        path = os.path.realpath(given)
        try:
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                inner = file_set(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
                sizes |= dict.fromkeys(inner.paths, 0)
                left += inner.left_out
            elif not stat.S_ISREG(status.st_mode):
                left.append((str(given), "not a regular file"))
            elif not os.access(path, os.R_OK):
                left.append((str(given), "no permission to read"))
            else:
                sizes[path] = status.st_size
        except OSError as error:
            left.append((str(given), (error.strerror or str(error)).lower()))
    for path in sizes:
        sizes[path] = sizes[path] or size_of(path)
    return FileSet(tuple(sorted(sizes)), sum(sizes.values()), tuple(left))


def size_of(path: str) -> int:
    """Size of a file, 0 if it is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _window(trace: Trace) -> tuple[int, int]:
    """From the first step of any rank to the end of the last one; everything if there are no steps."""
    try:
        found = steps(trace)
    except MissingDataError:
        return -(1 << 62), 1 << 62
    return int(found["begin_ns"].min()), int(found["end_ns"].max())


def _uses_data(piece: Table, begin: int, end: int) -> npt.NDArray[np.bool_]:
    op, result = piece["op_code"], piece["result_bytes"]
    inside = (piece["end_ns"] >= begin) & (piece["begin_ns"] <= end)
    read = np.isin(op, _READS) & (result > 0) & ((piece["io_flags"] & _NO_FILE) == 0) & inside
    used: npt.NDArray[np.bool_] = read | ((op == IoOp.MMAP) & (result >= 0))
    return used
