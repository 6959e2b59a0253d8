"""Files that a job reads in its steps, by what was recorded of a run: the files to make cold or warm."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import MissingDataError, say_why
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import NOT_FILES, READS, WRITES, IoFlag, IoOp, ProcessRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Direct I/O goes past the page cache.
_NO_FILE = NOT_FILES | int(IoFlag.DIRECT)
_LIBRARIES = re.compile(r"\.so(\.\d+)*$|\.py[cdiow]?$|\.pth$|\.(dist|egg)-info/|/__pycache__/")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/share/locale/")


@dataclass(frozen=True, slots=True)
class FileSet:
    """Regular files of this machine."""

    #: Absolute, without symbolic links, sorted.
    paths: tuple[str, ...]
    #: Their sizes together.
    bytes: int
    #: What was asked for and is not among them.
    left_out: tuple[tuple[str, str], ...] = ()


def files_read(trace: Trace) -> FileSet:
    """Files that ranks and their workers read or mapped while they made steps, as far as they are on this machine.

    Reads before the first step are left out: they are not repeated in a step. A mapping counts whenever it was made,
    since what is read through it is not seen. Code is left out. Raises MissingDataError if no call was recorded.
    """
    if not trace.io_rows_count:
        raise MissingDataError("no I/O call was recorded", hint="run with the collector posix_io on")
    begin, end = _window(trace)
    seen = np.zeros((2, len(trace.strings)), dtype=bool)
    tracks = _tracks(trace)
    for piece in trace.io_pieces():
        used = _reads_data(piece, begin, end) | ((piece["op_code"] == IoOp.MMAP) & (piece["result_bytes"] >= 0))
        for row, chosen in enumerate(tracks):
            ours = used & np.isin(piece["track_id"], chosen)
            seen[row, piece["path_code"][ours]] = True
    here, elsewhere = (
        [path for code in np.flatnonzero(codes).tolist() if (path := trace.text(code)) and not is_library(path)]
        for codes in (seen[0], seen[1] & ~seen[0])
    )
    files = file_set(here)
    return replace(files, left_out=(*files.left_out, *((path, "read on another host") for path in elsewhere)))


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that a run read from files of this host in its steps."""

    #: By path, without symbolic links; code is left out, and what the run wrote itself.
    bytes_of: Mapping[str, int]
    #: Share of the bytes that an earlier call of the run had read already, so that they came from memory.
    again_ratio: float

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.bytes_of.values())


def reading(trace: Trace, first_step: int = 0) -> Reading:
    """Find what ranks and their workers read from a step on.

    ``first_step``: bytes count from here; what was read before it in other steps is known all the same.
    """
    begin, end = _window(trace)
    counted_from = _window(trace, first_step)[0]
    columns: list[tuple[npt.NDArray[np.int64], ...]] = []
    own = _tracks(trace)[0]
    written = np.zeros(len(trace.strings), dtype=bool)
    for piece in trace.io_pieces():
        written[piece["path_code"][np.isin(piece["op_code"], WRITES) & (piece["result_bytes"] > 0)]] = True
        rows = np.flatnonzero(_reads_data(piece, begin, end) & np.isin(piece["track_id"], own))
        columns.append(tuple(piece[name][rows].astype(np.int64) for name in ("path_code", "begin_ns", "result_bytes")))
    if not columns:
        return Reading({}, 0.0)
    code, moment, amount = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    codes = np.unique(code)
    files = {code: path for code in codes[~written[codes]].tolist() if (path := trace.text(code))}
    sizes = np.zeros(len(trace.strings), dtype=np.int64)
    for file, path in files.items():
        sizes[file] = 0 if is_library(path) else size_of(path)
    keep = sizes[code] > 0  # those that are gone are not part of a data set
    order = np.flatnonzero(keep)[np.argsort(moment[keep], kind="stable")]
    code, moment, amount = code[order], moment[order], amount[order]
    by_file = GroupBy(code)
    again = np.clip(
        by_file.sum_before(amount) + amount - sizes[code], 0, amount
    )  # beyond its size it is read once more
    counted = moment >= counted_from
    bytes_of: dict[str, int] = {}
    for file, total in zip(by_file.values.tolist(), by_file.sum(amount, where=counted).tolist(), strict=True):
        path = os.path.realpath(files[file])
        bytes_of[path] = bytes_of.get(path, 0) + total
    bytes_of = {path: total for path, total in bytes_of.items() if total}
    return Reading(bytes_of, float(again[counted].sum()) / max(float(amount[counted].sum()), 1.0))


def _tracks(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tracks of ranks and workers on this host, and on any."""
    here = socket.gethostname()
    processes, tracks = trace.processes, trace.tracks
    wanted = np.isin(processes["role_code"], (ProcessRole.RANK, ProcessRole.WORKER)) | (processes["rank"] >= 0)
    local = np.array([trace.text(code) in ("", here) for code in processes["host_code"].tolist()], dtype=bool)
    chosen = (processes["process_id"][wanted & local], processes["process_id"][wanted])
    on_host, of_job = (tracks["track_id"][np.isin(tracks["process_id"], ids)] for ids in chosen)
    return on_host, of_job


def is_library(path: str) -> bool:
    """Whether a path is code or a pseudo file of the system.

    Examples
    --------
    >>> is_library("/usr/lib/libm.so.6"), is_library("/data/a.pyc"), is_library("/data/train.tar")
    (True, True, False)
    """
    return path.startswith(_SYSTEM) or _LIBRARIES.search(path) is not None


def file_set(paths: Iterable[str | os.PathLike[str]]) -> FileSet:
    """Collect the regular files among paths and below folders, following symbolic links."""
    sizes: dict[str, int] = {}
    left: list[tuple[str, str]] = []
    for given in paths:
        path = os.path.realpath(given)
        try:
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                inner = file_set(_below(path, left))
                sizes |= dict.fromkeys(inner.paths, 0)
                left += inner.left_out
            elif not stat.S_ISREG(status.st_mode):
                left.append((str(given), "not a regular file"))
            elif not os.access(path, os.R_OK):
                left.append((str(given), "no permission to read"))
            else:
                sizes[path] = status.st_size
        except OSError as error:
            left.append((str(given), say_why(error)))
    for path in sizes:
        sizes[path] = sizes[path] or size_of(path)
    return FileSet(tuple(sorted(sizes)), sum(sizes.values()), tuple(left))


def _below(folder: str, left: list[tuple[str, str]]) -> Iterator[str]:
    """Files below a folder; each folder once, for links may lead in a circle."""

    def refuse(error: OSError) -> None:
        left.append((str(error.filename), say_why(error)))

    seen: set[str] = set()
    for where, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (os.path.join(real, name) for name in names)


def size_of(path: str) -> int:
    """Size of a file, 0 if it is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _window(trace: Trace, first_step: int = 0) -> tuple[int, int]:
    """Begin and end, ns, of all steps from ``first_step`` on; all of time if there are no steps."""
    try:
        known = steps(trace)
    except MissingDataError:
        return -(1 << 62), 1 << 62
    begins, end = known["begin_ns"][known["step"] >= first_step], int(known["end_ns"].max())
    return int(begins.min(initial=end)), end


def _reads_data(piece: Table, begin: int, end: int) -> npt.NDArray[np.bool_]:
    inside = (piece["end_ns"] >= begin) & (piece["begin_ns"] <= end)
    file = (piece["io_flags"] & _NO_FILE) == 0
    read: npt.NDArray[np.bool_] = np.isin(piece["op_code"], READS) & (piece["result_bytes"] > 0) & inside & file
    return read
