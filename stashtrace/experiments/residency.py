"""How much of a file lies in the page cache, asked of the kernel in ways that are tried out before they are believed.

``cachestat`` (Linux 6.5) answers for a descriptor, ``mincore`` for a mapping. Either can lie: ``mincore`` calls every
page resident of a file that one neither owns nor may write (since 5.2), and a stacked file system may keep its pages
under another file than the one that was asked about. So an instrument counts only for file systems on which it has
seen a page that was just read. Used by ``page_cache``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable

import numpy as np

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: The same on all architectures.
_CACHESTAT = 451
_PROT_READ, _MAP_SHARED, _MAP_FAILED = 1, 1, 2**64 - 1
#: Mapped at a time by mincore.
_WINDOW_BYTES = 1 << 30
#: Given back by ``residency`` for a file that nothing could be learnt about.
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
