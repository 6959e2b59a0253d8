"""Reads of a disk, for the workers of ``calibrate``: cold ones, and proof that they were cold."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import random
import tempfile
import time

_CHUNK_BYTES = 128 * 1024
_BLOCK_BYTES = 4096
_FILL_BYTES = 4 << 20
#: The largest size fits this often, so that reads of one round do not meet.
_ROOM = 4
#: More reads than this share from the page cache, and the figures would be those of memory.
_WARM_RATIO = 0.05


class DiskReads:
    """Reads of a file that is not in the page cache.

    ``random_read`` is one ``pread`` of the size with read-ahead off; ``sequential_read`` is the size in calls of
    128 KiB with read-ahead on. Each begins at a random place whose pages were dropped before.

    Parameters
    ----------
    folder : str
        Where the file is made, and removed at the end.
    largest_bytes : int
        Largest size that will be read.
    """

    timing = "host"

    def __init__(self, folder: str, largest_bytes: int) -> None:
        self._file_bytes = largest_bytes * _ROOM
        self._random = random.Random(7)
        self._reads_count = self._warm_count = 0
        # Unlinked at once on Linux: nothing is left behind, however this process ends.
        self._file = tempfile.TemporaryFile(prefix=".stashtrace-calibrate-", dir=folder)  # noqa: SIM115
        self._descriptor = self._file.fileno()
        block = os.urandom(_FILL_BYTES)
        for at in range(0, self._file_bytes, _FILL_BYTES):
            os.pwrite(self._descriptor, block[: min(_FILL_BYTES, self._file_bytes - at)], at)
        os.fsync(self._descriptor)
        self._buffer = memoryview(bytearray(largest_bytes))

    def prepare(self, op: str, size_bytes: int) -> None:
        """Nothing: all sizes share the file and the buffer."""
        if op not in ("random_read", "sequential_read"):
            raise ValueError(f"no such read: {op}")

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Read one range, cold."""
        blocks = max((self._file_bytes - size_bytes) // _BLOCK_BYTES, 1)
        at = self._random.randrange(blocks) * _BLOCK_BYTES
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        advice = os.POSIX_FADV_RANDOM if op == "random_read" else os.POSIX_FADV_SEQUENTIAL
        os.posix_fadvise(self._descriptor, 0, 0, advice)
        self._reads_count += 1
        self._warm_count += self._is_cached(at)
        chunk = size_bytes if op == "random_read" else _CHUNK_BYTES
        begin = time.monotonic_ns()
        done = 0
        while done < size_bytes:
            part = os.preadv(self._descriptor, [self._buffer[done : min(done + chunk, size_bytes)]], at + done)
            if part == 0:
                raise OSError(f"the file ends at {at + done}")
            done += part
        return begin, time.monotonic_ns()

    def barrier(self) -> None:
        """One process waits for nobody."""

    def agree(self, wish: bool) -> bool:
        """One process agrees with itself."""
        return wish

    def complaint(self) -> str:
        """Why the figures are not those of the disk, empty if they are."""
        if self._warm_count > _WARM_RATIO * self._reads_count:
            share = round(100 * self._warm_count / self._reads_count)
            return f"{share} % of the reads came from the page cache, which cannot be dropped here (tmpfs?)"
        return ""

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _is_cached(self, at: int) -> bool:
        try:
            return os.preadv(self._descriptor, [self._buffer[:1]], at, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            return False
        except OSError:
            return False  # a file system that cannot say
