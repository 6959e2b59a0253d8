"""Make files of a job cold or warm in the page cache, and prove that they are.

Called between two runs of a job. A recorded run says which files matter. A state is claimed only where it was
measured afterwards: on tmpfs nothing gets cold, mapped and dirty pages stay, a network file system may ignore
the advice, and pages read first may be gone when the last are read.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stashtrace.errors import CaptureError, say_why
from stashtrace.lab.job_files import FileSet, size_of
from stashtrace.lab.machine import free_memory_bytes
from stashtrace.record.host import IN_MEMORY, file_system_of, is_far
from stashtrace.text.prose import count_noun, list_some
from stashtrace.text.units import bytes_text, percent_text

#: Files are cold with at most this share resident, and warm with all but this share.
TOLERANCE_RATIO = 0.01
#: Share of the free memory that warm files may take; the rest is the job's.
ROOM_RATIO = 0.8
DROP_CACHES = "/proc/sys/vm/drop_caches"
_CHUNK_BYTES = 4 << 20
#: A page may be busy at the moment of the advice, or be evicted while others are read.
_TRIES = 3
_NAMED = 3
COLD, WARM = "cold", "warm"


@dataclass(frozen=True, slots=True)
class CacheState:
    """What was done to the page cache, and what was found afterwards."""

    #: The wanted one, ``cold`` or ``warm``; holds only if ``verified``.
    state: str
    #: ``drop_caches``, ``posix_fadvise``, ``read``; ``none`` if nothing was done.
    method: str
    #: Those it was done to.
    files: FileSet
    #: Resident share afterwards; NaN if it is not known.
    share: float
    #: Whether it was measured that the state is the wanted one.
    verified: bool
    #: ``cachestat``, ``mincore``; empty if neither works here.
    instrument: str
    #: What stands against it, and what limits it.
    problems: tuple[str, ...]
    #: For a report.
    sentence: str


# Cold and warm ----------------------------------------------------------------------------------


def make_cold(files: FileSet, *, drop_caches: bool = False, residency: Residency | None = None) -> CacheState:
    """Take files out of the page cache, and check that they are gone.

    ``drop_caches``: drop the page cache of the whole machine, if that is permitted; else, and by default, of these
    files alone. ``residency``: what checks.
    """
    asked = residency or Residency()
    problems: list[str] = []
    method = "posix_fadvise"
    if drop_caches:
        try:
            _drop_all()
            method = "drop_caches"
        except CaptureError as error:
            problems.append(str(error))
    resident: Resident = {}
    for number in range(_TRIES):
        if method == "posix_fadvise" or number:  # what was dirty when all was dropped is still there
            for path in files.paths:
                _advise(path)
        resident = _resident(files, asked)
        if _is_reached(COLD, resident, files):
            break
    return _judge(COLD, method, files, resident, asked, problems)


def make_warm(files: FileSet, *, residency: Residency | None = None) -> CacheState:
    """Read files until they are resident, and check that they all are; nothing is read if they do not fit."""
    asked = residency or Residency()
    room = memory_room()
    if files.bytes > room:
        problem = f"{bytes_text(files.bytes)} do not fit into the {bytes_text(room)} of memory that are free for them"
        return _judge(WARM, "none", FileSet((), 0), {}, asked, [f"{problem}, nothing was read"])
    resident = _resident(files, asked)
    for _ in range(_TRIES):
        if _is_reached(WARM, resident, files):
            break
        _read(files, resident)
        resident = _resident(files, asked)
    return _judge(WARM, "read", files, resident, asked, [])


def check(state: CacheState, *, residency: Residency | None = None) -> CacheState:
    """Check again whether a state holds, right before or after it mattered."""
    asked = residency or Residency()
    return _judge(state.state, state.method, state.files, _resident(state.files, asked), asked, [])


def memory_room() -> int:
    """Bytes that warm files may take: a part of the free memory."""
    return int(ROOM_RATIO * free_memory_bytes())


#: Resident bytes by path; UNKNOWN for what cannot be opened or examined.
Resident = dict[str, int]


def _resident(files: FileSet, asked: Residency) -> Resident:
    resident: Resident = {}
    for path in files.paths:
        try:
            resident[path] = asked.resident_bytes(path)
        except OSError:
            resident[path] = UNKNOWN
    return resident


def _is_reached(state: str, resident: Resident, files: FileSet) -> bool:
    """Whether every file was examined, and enough is cold or warm."""
    if UNKNOWN in resident.values():
        return False
    total = sum(resident.values())
    return total <= TOLERANCE_RATIO * files.bytes if state == COLD else total >= (1 - TOLERANCE_RATIO) * files.bytes


def _judge(
    state: str, method: str, files: FileSet, resident: Resident, asked: Residency, problems: Sequence[str]
) -> CacheState:
    """Build the state; it is verified only if every file was examined and is as wanted."""
    known = UNKNOWN not in resident.values()
    share = sum(resident.values()) / files.bytes if known and files.bytes else float("nan")
    verified = bool(files.bytes) and _is_reached(state, resident, files)
    every = (*problems, *_obstacles(state, files, resident, verified))
    instrument = ", ".join(asked.used)
    text = f"{bytes_text(files.bytes)} in {count_noun(len(files.paths), 'file')}"
    how = {"drop_caches": "drop_caches of the whole machine", "read": "reading"}.get(method, method)
    finds = f"{instrument or 'nothing'} finds {percent_text(share)} resident" if known else ""
    if verified:
        sentence = f"{state}: {text} by {how}; {finds}"
    elif not files.bytes:
        sentence = f"not {state}: no file to check"
    else:
        sentence = f"not verified as {state}: {text}, {finds or 'what is resident is not known'} after {how}"
    return CacheState(state, method, files, share, verified, instrument, every, "; ".join([sentence, *every]))


def _obstacles(state: str, files: FileSet, resident: Resident, verified: bool) -> list[str]:
    """Why the state is not the wanted one, or is less than it seems."""
    said: list[str] = []
    unknown = [path for path, count in resident.items() if count == UNKNOWN]
    gone = [path for path in unknown if not os.path.exists(path)]
    closed = [path for path in unknown if path not in gone and not os.access(path, os.R_OK)]
    silent = [path for path in unknown if path not in gone and path not in closed]
    said += [f"{list_some(gone, _NAMED)} {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    said += [f"{list_some(closed, _NAMED)} may not be read"] if closed else []
    said += [f"{list_some(silent, _NAMED)} cannot be asked about"] if silent else []
    # One path of each folder: a mount point is a folder, so these see every file system.
    kinds = {file_system_of(path) for path in {os.path.dirname(path): path for path in files.paths}.values()}
    if in_memory := sorted(kinds.intersection(IN_MEMORY)):
        said.append(f"files on {', '.join(in_memory)} are always in memory")
    elif state == COLD and not verified:
        kept = sorted((path for path, count in resident.items() if count > 0), key=lambda path: -resident[path])
        if kept:
            stay = "stays" if len(kept) == 1 else "stay"
            said.append(
                f"{list_some(kept, _NAMED)} {stay} in memory: mapped, being written, or kept by its file system"
            )
    elif state == WARM and not verified and not unknown and files.bytes:
        said.append("what was read first was evicted while the rest was read")
    far = sorted(kind for kind in kinds if is_far(kind))
    if far and state == COLD:
        said.append(f"the servers of {', '.join(far)} may still hold the data in their memory")
    return said


def _drop_all() -> None:
    """Drop the page cache of the machine; raise CaptureError if that is not permitted."""
    os.sync()
    try:
        Path(DROP_CACHES).write_text("3", encoding="ascii")
    except OSError as error:
        raise CaptureError(f"drop_caches is not permitted ({say_why(error)})") from error


def _advise(path: str) -> None:
    """Write back what is dirty, then ask for the pages to go; whether they went is measured, so errors do not count."""
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


def _read(files: FileSet, resident: Resident) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    for path in files.paths:
        with suppress(OSError):
            if resident[path] < size_of(path):
                with open(path, "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        continue


# Residency: how much of a file lies in the page cache, asked of the kernel in ways that are tried before they are
# believed.
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
    """Count the resident pages of a range.

    Raises OSError if the kernel is older than 6.5, or does not allow it to this user.
    """
    counts = _Counts()
    span = _Range(offset, length)
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(span), ctypes.byref(counts), 0) != 0:
        raise _last_error()
    return int(counts.cache)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def mincore(descriptor: int, offset: int, length: int) -> int:
    """Count the resident pages of a range that begins at a page.

    Raises OSError if the file cannot be mapped, or belongs to somebody else: then every page would be called resident.
    """
    status = os.fstat(descriptor)
    if os.geteuid() not in (0, status.st_uid) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(errno.EPERM, "mincore answers owners and writers only")
    pages = 0
    for begin in range(offset, offset + length, _WINDOW_BYTES):
        size = min(_WINDOW_BYTES, offset + length - begin)
        address = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, begin)
        if address in (None, _MAP_FAILED):
            raise _last_error()
        try:
            flags = np.zeros(-(-size // PAGE_BYTES), dtype=np.uint8)
            if _libc.mincore(address, size, flags.ctypes.data) != 0:
                raise _last_error()
            pages += int((flags & 1).sum())
        finally:
            _libc.munmap(address, size)
    return pages


Instrument = Callable[[int, int, int], int]
#: In the order in which they are tried.
INSTRUMENTS: tuple[tuple[str, Instrument], ...] = (("cachestat", cachestat), ("mincore", mincore))


class Residency:
    """Ask the kernel how much of a file is resident; by the first instrument that proves to see pages.

    ``instruments``: :data:`INSTRUMENTS` by default. ``used``: names of the instruments that gave an answer.
    """

    def __init__(self, instruments: tuple[tuple[str, Instrument], ...] = INSTRUMENTS) -> None:
        self._instruments = instruments
        self._trusted: dict[tuple[int, str], bool] = {}
        self.used: list[str] = []

    def resident_bytes(self, path: str) -> int:
        """Resident bytes of a file, :data:`UNKNOWN` if no instrument shows them."""
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
        """Whether an instrument that reports no page would see one, tried once on each file system.

        One page is read, searched for, and given up again; its neighbours stay out, since read-ahead is off meanwhile.
        """
        key = (status.st_dev, name)
        if key not in self._trusted:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(descriptor, 1, 0)
            seen = instrument(descriptor, 0, PAGE_BYTES) > 0
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            self._trusted[key] = seen
        return self._trusted[key]
