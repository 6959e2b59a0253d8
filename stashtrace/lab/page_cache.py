"""Files of a job made cold or warm in the page cache, and proof that they are.

Called by experiments between two runs of a job. Which files matter is told by a run that was recorded. A state is
claimed only where it was measured afterwards: on tmpfs nothing gets cold, mapped and dirty pages stay, a
network file system may ignore the advice, and pages read first may be gone when the last are read.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stashtrace.lab.job_files import FileSet, file_set, files_read, size_of
from stashtrace.loading.foreign_files import free_bytes
from stashtrace.units import bytes_text, percent_text

#: Files are cold with at most this share resident, and warm with all but this share.
TOLERANCE_RATIO = 0.01
#: Share of the free memory that warm files may take; the rest is the job's.
ROOM_RATIO = 0.8
DROP_CACHES = "/proc/sys/vm/drop_caches"
_NETWORK = ("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "9p", "afs", "fuse", "virtiofs")
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_CHUNK_BYTES = 4 << 20
#: A page may be busy at the moment of the advice, or be evicted while others are read.
_TRIES = 3
_NAMED = 3

__all__ = [
    "CacheState",
    "FileSet",
    "check",
    "file_set",
    "files_read",
    "group_free_bytes",
    "make_cold",
    "make_warm",
    "memory_room",
]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CacheState:
    """What was done to the page cache, and what was found afterwards.

    Attributes
    ----------
    state : {"cold", "warm"}
        What was wanted; holds only if ``verified``.
    method : str
        ``drop_caches``, ``posix_fadvise``, ``read``; ``none`` if nothing was done.
    files : FileSet
        Those it was done to: fewer than asked for where not all fit into memory.
    resident_before_bytes, resident_after_bytes : int
        Of these files; -1 if nothing tells.
    share : float
        Resident share afterwards; NaN if nothing tells.
    verified : bool
        Whether it was measured that the state is the wanted one.
    instrument : str
        ``cachestat``, ``mincore``; empty if neither works here.
    problems : tuple of str
        What stands against it, and what limits it.
    sentence : str
        For a report.
    """

    state: str
    method: str
    files: FileSet
    resident_before_bytes: int
    resident_after_bytes: int
    share: float
    verified: bool
    instrument: str
    problems: tuple[str, ...]
    sentence: str


# Cold and warm ----------------------------------------------------------------------------------


def make_cold(files: FileSet, *, drop_caches: bool = False, residency: Residency | None = None) -> CacheState:
    """Take files out of the page cache, and look whether they are gone.

    Parameters
    ----------
    files : FileSet
    drop_caches : bool
        Drop the page cache of the whole machine, if that is permitted; else, and by default, of these files alone.
    residency : Residency, optional
        What looks.
    """
    look = residency or Residency()
    problems: list[str] = []
    before = _resident(files, look)
    method = "posix_fadvise"
    if drop_caches:
        refused = _drop_all()
        method = method if refused else "drop_caches"
        problems += [refused] if refused else []
    after = before
    for number in range(_TRIES):
        if method == "posix_fadvise" or number:  # what was dirty when all was dropped is still there
            for path in files.paths:
                _advise(path)
        after = _resident(files, look)
        if _is_cold(after, files):
            break
    return _judge("cold", method, files, _sum(before), after, look, problems)


def make_warm(
    files: FileSet,
    *,
    room_bytes: int | None = None,
    subset: bool = True,
    progress: Progress | None = None,
    residency: Residency | None = None,
) -> CacheState:
    """Read files until they are resident, and look whether they all are.

    Parameters
    ----------
    files : FileSet
    room_bytes : int, optional
        How much may be resident; :func:`memory_room` by default.
    subset : bool
        Where they do not fit, take those that do, by name; False: do nothing.
    progress : callable, optional
        Told (bytes read, bytes in all) now and then.
    residency : Residency, optional
        What looks.
    """
    look = residency or Residency()
    room = memory_room() if room_bytes is None else room_bytes
    problems: list[str] = []
    chosen = files if files.bytes <= room else _that_fit(files, room) if subset else FileSet((), 0)
    if chosen is not files:
        problems.append(
            f"{bytes_text(files.bytes)} do not fit into the {bytes_text(room)} of memory that are free for them, "
            + (f"{len(chosen.paths)} of {len(files.paths)} files do" if chosen.paths else "nothing was read")
        )
    before = _resident(chosen, look)
    after = before
    for _ in range(_TRIES):
        if _is_warm(after, chosen):
            break
        _read(chosen, after, progress)
        after = _resident(chosen, look)
    return _judge("warm", "read" if chosen.paths else "none", chosen, _sum(before), after, look, problems)


def check(state: CacheState, *, residency: Residency | None = None) -> CacheState:
    """Look again whether a state still holds, right before or after it mattered."""
    look = residency or Residency()
    after = _resident(state.files, look)
    return _judge(state.state, state.method, state.files, state.resident_before_bytes, after, look, [])


def memory_room() -> int:
    """Bytes that files may take in memory: a part of what this machine, or its control group, has free."""
    return int(ROOM_RATIO * min((free for free in (free_bytes(), group_free_bytes()) if free is not None), default=0))


Found = dict[str, int]


def _resident(files: FileSet, look: Residency) -> Found:
    """Resident bytes by path; UNKNOWN for what cannot be opened or told."""
    found: Found = {}
    for path in files.paths:
        try:
            found[path] = look.of(path)
        except OSError:
            found[path] = UNKNOWN
    return found


def _sum(found: Found) -> int:
    return UNKNOWN if UNKNOWN in found.values() else sum(found.values())


def _is_cold(found: Found, files: FileSet) -> bool:
    return UNKNOWN not in found.values() and sum(found.values()) <= TOLERANCE_RATIO * files.bytes


def _is_warm(found: Found, files: FileSet) -> bool:
    return UNKNOWN not in found.values() and sum(found.values()) >= (1 - TOLERANCE_RATIO) * files.bytes


def _judge(
    state: str, method: str, files: FileSet, was: int, after: Found, look: Residency, problems: Sequence[str]
) -> CacheState:
    """Put together what was found; the state holds only if everything was looked at and is as wanted."""
    told = UNKNOWN not in after.values()
    resident = _sum(after)
    share = resident / files.bytes if told and files.bytes else float("nan")
    verified = bool(files.bytes) and (_is_cold if state == "cold" else _is_warm)(after, files)
    said = [*problems, *_obstacles(state, files, after, verified)]
    asked = ", ".join(look.used) or "nothing"
    text = f"{bytes_text(files.bytes)} in {len(files.paths)} {'file' if len(files.paths) == 1 else 'files'}"
    how = {"drop_caches": "drop_caches of the whole machine", "read": "reading"}.get(method, method)
    if verified:
        sentence = f"{state}: {text} by {how}; {asked} finds {percent_text(share)} resident"
    elif not files.bytes:
        sentence = f"not {state}: no file to look at"
    else:
        known = f"{asked} finds {percent_text(share)} resident" if told else "what is resident is not known"
        sentence = f"not verified as {state}: {text}, {known} after {how}"
    return CacheState(
        state,
        method,
        files,
        was,
        resident,
        share,
        verified,
        ", ".join(look.used),
        tuple(said),
        "; ".join([sentence, *said]),
    )


def _obstacles(state: str, files: FileSet, after: Found, verified: bool) -> list[str]:
    """Why the state is not the wanted one, or is less than it seems."""
    said: list[str] = []
    unknown = [path for path, count in after.items() if count == UNKNOWN]
    if unknown:
        gone = [path for path in unknown if not os.path.exists(path)]
        closed = [path for path in unknown if path not in gone and not os.access(path, os.R_OK)]
        silent = [path for path in unknown if path not in gone and path not in closed]
        said += [_named("is gone", "are gone", gone)] if gone else []
        said += [_named("may not be read", "may not be read", closed)] if closed else []
        said += [_named("cannot be asked about", "cannot be asked about", silent)] if silent else []
    kinds = {path: file_system_of(path) for path in _first_of_each_folder(files.paths)}
    in_memory = sorted({kind for kind in kinds.values() if kind in IN_MEMORY})
    if in_memory:
        said.append(f"files on {', '.join(in_memory)} are always in memory")
    elif state == "cold" and not verified:
        kept = sorted((path for path, count in after.items() if count > 0), key=lambda path: -after[path])
        if kept:
            said.append(_named("stays", "stay", kept) + " in memory: mapped, being written, or kept by its file system")
    elif state == "warm" and not verified and not unknown and files.bytes:
        said.append("what was read first was evicted while the rest was read")
    far = sorted({kind for kind in kinds.values() if kind.startswith(_NETWORK) and kind != "fuseblk"})
    if far and state == "cold":
        said.append(f"the servers of {', '.join(far)} may still hold the data in their memory")
    return said


def _named(one: str, several: str, paths: Sequence[str]) -> str:
    names = ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
    return f"{names} {one if len(paths) == 1 else several}"


def _first_of_each_folder(paths: Sequence[str]) -> list[str]:
    """One path of each folder: a mount point is a folder, so these see every file system."""
    return list({os.path.dirname(path): path for path in paths}.values())


def _drop_all() -> str:
    """Drop the page cache of the machine; why that was not possible, empty if it was."""
    os.sync()
    try:
        Path(DROP_CACHES).write_text("3", encoding="ascii")
    except OSError as error:
        return f"drop_caches is not permitted ({(error.strerror or str(error)).lower()})"
    return ""


def _advise(path: str) -> None:
    """Write back what is dirty, then ask for the pages to go. Whether they went is measured, so errors tell nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return
    finally:
        os.close(descriptor)


def _read(files: FileSet, found: Found, progress: Progress | None) -> None:
    """Read what is not wholly resident."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    done = 0
    for path in files.paths:
        size = size_of(path)
        if found[path] < size:
            try:
                with open(path, "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        continue
            except OSError:
                continue  # found missing when it is looked for
        done += size
        if progress is not None:
            progress(done, files.bytes)


def _that_fit(files: FileSet, room: int) -> FileSet:
    """Files by name, each that still fits."""
    taken: list[str] = []
    left = room
    for path in files.paths:
        size = size_of(path)
        if size <= left:
            taken.append(path)
            left -= size
    return FileSet(tuple(taken), room - left, files.left_out)


def group_free_bytes(listing: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control groups around this process leave free, the least of them; None if none has a limit.

    Parameters
    ----------
    listing : path
        The groups of this process.
    root : path
        Where the groups are mounted, version 2 or 1.
    """
    free: list[int] = []
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                free += _left_in(folder, *names)
    return min(free, default=None)


def _left_in(group: Path, limit_name: str, used_name: str) -> list[int]:
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in (limit_name, used_name))
        details = (group / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return []
    if not limit.isdecimal():
        return []
    # Pages of files that nobody used lately are given back first.
    cached = re.search(r"^(?:total_)?inactive_file (\d+)", details, re.MULTILINE)
    return [max(int(limit) - int(used) + (int(cached[1]) if cached else 0), 0)]


# How much of a file lies in the page cache, asked of the kernel in ways that are tried out before they are believed.
#
# ``cachestat`` (Linux 6.5) answers for a descriptor, ``mincore`` for a mapping. Either can lie: ``mincore`` calls
# every page resident of a file that one neither owns nor may write (since 5.2), and a stacked file system may keep
# its pages under another file than the one that was asked about. So an instrument counts only for file systems on
# which it has seen a page that was just read.

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: The same on all architectures.
_CACHESTAT = 451
_PROT_READ, _MAP_SHARED, _MAP_FAILED = 1, 1, 2**64 - 1
#: Mapped at a time by mincore.
_WINDOW_BYTES = 1 << 30
#: Given back for a file that nothing could be learnt about.
UNKNOWN = -1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted"))


def cachestat(descriptor: int, offset: int, length: int) -> int:
    """Resident pages of a range.

    Raises
    ------
    OSError
        If the kernel is older than 6.5, or does not tell this user.
    """
    counts = _Counts()
    span = _Range(offset, length)
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(span), ctypes.byref(counts), 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(counts.cache)


def mincore(descriptor: int, offset: int, length: int) -> int:
    """Resident pages of a range that begins at a page.

    Raises
    ------
    OSError
        If the file cannot be mapped, or belongs to somebody else: then every page would be called resident.
    """
    status = os.fstat(descriptor)
    if os.geteuid() not in (0, status.st_uid) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(errno.EPERM, "mincore tells only owners and writers")
    pages = 0
    for begin in range(offset, offset + length, _WINDOW_BYTES):
        size = min(_WINDOW_BYTES, offset + length - begin)
        address = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, begin)
        if address in (None, _MAP_FAILED):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        try:
            found = np.zeros(-(-size // PAGE_BYTES), dtype=np.uint8)
            if _libc.mincore(address, size, found.ctypes.data) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            pages += int((found & 1).sum())
        finally:
            _libc.munmap(address, size)
    return pages


Instrument = Callable[[int, int, int], int]
#: In the order in which they are tried.
INSTRUMENTS: tuple[tuple[str, Instrument], ...] = (("cachestat", cachestat), ("mincore", mincore))


class Residency:
    """Asks how much of files is resident; one instrument per file system, the first that proves to see pages.

    Parameters
    ----------
    instruments : sequence of (name, function)
        :data:`INSTRUMENTS` by default.

    Attributes
    ----------
    used : list of str
        Names of the instruments that gave an answer.
    """

    def __init__(self, instruments: tuple[tuple[str, Instrument], ...] = INSTRUMENTS) -> None:
        self._instruments = instruments
        self._trusted: dict[tuple[int, str], bool] = {}
        self.used: list[str] = []

    def of(self, path: str) -> int:
        """Resident bytes of a file, :data:`UNKNOWN` if no instrument tells.

        Raises
        ------
        OSError
            If the file cannot be opened.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_size == 0:
                return 0
            for name, instrument in self._instruments:
                try:
                    pages = instrument(descriptor, 0, status.st_size)
                    trusted = pages > 0 or self._sees(name, instrument, descriptor, status)
                except OSError:
                    continue
                if trusted:
                    if name not in self.used:
                        self.used.append(name)
                    return min(pages * PAGE_BYTES, status.st_size)
            return UNKNOWN
        finally:
            os.close(descriptor)

    def _sees(self, name: str, instrument: Instrument, descriptor: int, status: os.stat_result) -> bool:
        """Whether an instrument that says "nothing" would see a page, tried once on each file system.

        One page is read, looked for, and given up again; its neighbours stay out, since read-ahead is off meanwhile.
        """
        key = (status.st_dev, name)
        if key not in self._trusted:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(descriptor, 1, 0)
            seen = instrument(descriptor, 0, PAGE_BYTES) > 0
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            self._trusted[key] = seen
        return self._trusted[key]


def file_system_of(path: str, mounts: Iterable[str] | None = None) -> str:
    """Type of the file system that holds a path, empty if unknown.

    Parameters
    ----------
    path : str
        Absolute, without symbolic links.
    mounts : iterable of str, optional
        Lines as in ``/proc/self/mountinfo``, which is read by default.
    """
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.readlines()
        except OSError:
            return ""
    best, kind = "", ""
    for line in mounts:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = fields[4].encode("latin-1", "replace").decode("unicode_escape") if "\\" in fields[4] else fields[4]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point the later is seen
            best, kind = point, after.split(" ")[0]
    return kind
