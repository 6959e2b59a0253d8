"""The merge's rewrite of one process file: raw rows and ring leftovers -> packed columns, then the ring goes.

    X.stash + X.ring --> X.stash.tmp (packed, checked, synced) --rename--> X.stash (FLAG_MERGED) --> unlink X.ring

Called by `stashtrace run` and `stashtrace merge`. A crash at any point leaves either the raw files, or
the merged file next to a ring that readers then ignore; so rows are never lost or doubled, and a second
call finishes or does nothing. Memory is bounded by ``_BUFFER_BYTES`` whatever the size of the run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from stashtrace.errors import FormatError
from stashtrace.files.whole_files import give_mode, new_file
from stashtrace.format.codec import decode, encode
from stashtrace.format.container import FLAG_MERGED, ByteFile, pack_head, pack_segment, read_head, scan_segments
from stashtrace.format.liveness import LiveRings
from stashtrace.format.project import Layout
from stashtrace.format.reader import RawRun
from stashtrace.format.stash_file import StashFile

_SEGMENT_ROWS = 1 << 16
_BUFFER_BYTES = 64 << 20
#: Room in the head for losses that are found while the rows are read; the second is tried if the first is too small.
_HEAD_SLACK_BYTES = (512, 1 << 20)

#: Files that become durable together, and the threads that wait for the disk meanwhile.
_BATCH_FILES = 64
_BATCH_BYTES = 64 << 20
_WAITING_THREADS = 16

#: Called with (bytes done, bytes in all) as files are rewritten.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class CompactReport:
    """What became of the files of a run."""

    #: Names of the files rewritten now, rewritten before, still being written.
    merged: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    alive: list[str] = field(default_factory=list)
    #: Files left as they were, and why.
    problems: list[tuple[str, str]] = field(default_factory=list)
    #: Of the files rewritten now, rings not counted.
    bytes_before: int = 0
    bytes_after: int = 0


def compact_run(run: RawRun, *, progress: Progress | None = None, live: LiveRings | None = None) -> CompactReport:
    """Rewrite every process file of a run that has ended.

    ``run``: opened before; open it again afterwards to read what was written. ``progress``: see :data:`Progress`.
    ``live``: which rings are still mapped by a process; looked up in /proc if not given.
    """
    live = live or LiveRings.now()
    report = CompactReport()
    total = sum(p.size_bytes for p in run.processes)
    done = 0
    with _Batch(report) as batch:
        for process in run.processes:
            if process.head.merged:
                _drop(process.ring_path)
                report.already.append(process.name)
            elif live.holds(process):
                report.alive.append(process.name)
            else:
                batch.add(process)
            done += process.size_bytes
            if progress is not None:
                progress(done, total)
    return report


class _Batch:
    """Rewritten files that are made durable together.

    Each ``fsync`` waits for the disk's journal, and a run may have thousands of small processes. Waits side by side
    take as long as one. Until :meth:`settle` the raw files are as they were.
    """

    def __init__(self, report: CompactReport) -> None:
        self._report = report
        self._written: list[_Rewritten] = []

    def add(self, process: StashFile) -> None:
        """Rewrite one file next to the old one."""
        with self._reporting(process):
            self._written.append(_Rewritten(process))
        if len(self._written) >= _BATCH_FILES or sum(w.size for w in self._written) >= _BATCH_BYTES:
            self.settle()

    def settle(self) -> None:
        """Wait until all are on the disk, then put them in the places of the old files."""
        if not self._written:
            return
        with ThreadPoolExecutor(min(len(self._written), _WAITING_THREADS)) as waiting:
            synced = [waiting.submit(os.fsync, new.out.fileno()) for new in self._written]
        replaced: list[_Rewritten] = []
        for new, sync in zip(self._written, synced, strict=True):
            with self._reporting(new.process):
                if sync.exception() is not None:
                    new.give_up()
                sync.result()
                new.replace()
                replaced.append(new)
        self._written = []
        for directory in {os.path.dirname(new.process.path) for new in replaced}:
            _sync_directory(directory)
        for new in replaced:
            new.drop_ring()
            self._report.merged.append(new.process.name)
            self._report.bytes_before += new.process.size_bytes
            self._report.bytes_after += new.size

    def __enter__(self) -> _Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            for new in self._written:  # after an interrupt; files that are in their place already stay there
                new.give_up()

    @contextlib.contextmanager
    def _reporting(self, process: StashFile) -> Iterator[None]:
        """Turn what goes wrong with one file into an entry of the report."""
        try:
            yield
        except BlockingIOError:
            self._report.alive.append(process.name)
        except OSError as error:
            self._report.problems.append((process.name, f"{error.strerror}; the raw file is kept"))
        except FormatError as error:
            self._report.problems.append((process.name, f"{error}; the raw file is kept"))


class _Rewritten:
    """A file rewritten next to the old one, locked, and read back; not yet in its place.

    Raises OSError if there is no room or no permission; BlockingIOError if another merge is at work on this file.
    Raises FormatError if what was written does not read back as what was to be written.
    """

    def __init__(self, process: StashFile, *, again: bool = False) -> None:
        self.process = process
        self._temporary = process.path + ".tmp"
        self.size = 0
        out: BinaryIO | None = None
        try:
            descriptor = _open_fixed(self._temporary, os.stat(process.path).st_uid)
            self.out = out = os.fdopen(descriptor, "r+b")
            fcntl.flock(self.out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another merge may have finished between our opening and our lock: then this file is its result.
            exists = os.path.exists(self._temporary)
            if not exists or not os.path.samestat(os.stat(self._temporary), os.fstat(self.out.fileno())):
                raise BlockingIOError(errno.EWOULDBLOCK, "another merge has just rewritten it", process.path)
        except BaseException:
            if out is not None:
                out.close()
            _drop_abandoned(self._temporary)
            raise
        try:
            # The segments that we know would be those of the old file.
            if not again and _is_merged(process.path):
                raise BlockingIOError(errno.EWOULDBLOCK, "another merge has rewritten it", process.path)
            checksums = _write(process, self.out)
            self.out.flush()
            self.size = self.out.tell()
            _check(self._temporary, checksums)
        except BaseException:
            self.give_up()
            raise

    def replace(self) -> None:
        """Put the file, once synced, in the place of the old one; the caller syncs the directory."""
        try:
            give_mode(Path(self._temporary), os.stat(self.process.path).st_mode & 0o777)
            os.replace(self._temporary, self.process.path)
        except BaseException:
            self.give_up()
            raise
        self.out.close()

    def give_up(self) -> None:
        """Leave the raw files as they were."""
        _drop(self._temporary)
        self.out.close()

    def drop_ring(self) -> None:
        """Remove the ring whose rows are in the new file."""
        if self.process.has_ring:  # a ring that could not be read stays
            _drop(self.process.ring_path)


def _open_fixed(path: str, owner: int) -> int:
    """Open the file of a fixed name that a merge locks, also one that a merge left which was killed.

    One that another user put there is refused: it may be a second name of any file.

    Raises OSError if it is refused, or cannot be made.
    """
    try:
        return new_file(path)
    except FileExistsError:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    known = os.fstat(descriptor)
    if known.st_nlink > 1 or known.st_uid not in (owner, os.geteuid()):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is another user's file", path)
    return descriptor


def _drop_abandoned(path: str) -> None:
    """Remove a half written file, unless a merge holds its lock; an interrupt may come before the lock."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                os.unlink(path)
        finally:
            os.close(descriptor)


def compact_file(process: StashFile, *, again: bool = False) -> int:
    """Rewrite one file, drop its ring, and return the new size. A merged file is rewritten only if ``again``.

    Raises OSError, FormatError as :class:`_Rewritten`; the raw files are then as they were.
    """
    written = _Rewritten(process, again=again)
    try:
        os.fsync(written.out.fileno())
    except BaseException:
        written.give_up()
        raise
    written.replace()
    _sync_directory(os.path.dirname(process.path))
    written.drop_ring()
    return written.size


def write_packed(process: StashFile, path: str) -> int:
    """Write a process's rows into a new file, as the merge does; returns its size.

    Raises OSError, FormatError as :class:`_Rewritten`; no file is left then.
    """
    with os.fdopen(new_file(path), "r+b") as out:
        try:
            checksums = _write(process, out)
            out.flush()
            _check(path, checksums)
            os.fsync(out.fileno())
        except BaseException:
            _drop(path)
            raise
        return out.tell()


def _is_merged(path: str) -> bool:
    with ByteFile(path) as source:
        return read_head(source).merged


def _write(process: StashFile, out: BinaryIO) -> list[int]:
    """Write head, segments, then the head again with the losses found; return the checksums of the payloads."""
    for slack in _HEAD_SLACK_BYTES:
        out.truncate(0)
        reserved = len(_head(process, 0)) + slack
        out.seek(reserved)
        checksums: list[int] = []
        for segment in _segments(process, checksums):
            out.write(segment)
        head = _head(process, reserved)
        if len(head) == reserved:
            end = out.tell()
            out.seek(0)
            out.write(head)
            out.seek(end)
            return checksums
    raise FormatError(f"{process.name}.stash has {len(process.lasting_losses)} different losses, too many for its head")


def _head(process: StashFile, size: int) -> bytes:
    """Bytes of the new head, without the fields of absent records, filled up to ``size`` by blanks in the JSON text."""
    present = set(process.row_counts())
    records = [r for r in process.head.records if isinstance(r, dict) and str(r.get("name")) in present]
    flags = process.head.flags | FLAG_MERGED
    metadata = {**process.metadata, "losses": process.lasting_losses}
    head = pack_head(records, metadata, flags=flags)
    if size <= len(head):
        return head
    blanks = size - len(pack_head(records, {**metadata, "blanks": ""}, flags=flags))
    return pack_head(records, {**metadata, "blanks": " " * max(blanks, 0)}, flags=flags)


class _Ring:
    """Rows of one ring that wait to become a segment."""

    __slots__ = ("first_sequence", "layout", "parts", "rows")

    def __init__(self, layout: Layout, first_sequence: int) -> None:
        self.layout = layout
        self.first_sequence = first_sequence
        self.parts: list[bytes] = []
        self.rows = 0


def _segments(process: StashFile, checksums: list[int]) -> Iterator[bytes]:
    rings: dict[tuple[int, int, int], _Ring] = {}
    buffered = 0
    for chunk in process.chunks():
        size = chunk.layout.dtype.itemsize
        data = memoryview(np.ascontiguousarray(chunk.rows).view(np.uint8))  # type: ignore[arg-type]
        begin = 0
        while begin < len(chunk.rows):
            key = (chunk.layout.record_id, chunk.tid, chunk.ring_id)
            ring = rings.get(key)
            if ring is not None and ring.first_sequence + ring.rows != chunk.first_sequence + begin:
                yield _pack(key, rings.pop(key), checksums)
                buffered -= ring.rows * size
                ring = None
            if ring is None:
                ring = rings[key] = _Ring(chunk.layout, chunk.first_sequence + begin)
            take = min(len(chunk.rows) - begin, _SEGMENT_ROWS - ring.rows)
            ring.parts.append(bytes(data[begin * size : (begin + take) * size]))
            ring.rows += take
            buffered += take * size
            begin += take
            if ring.rows == _SEGMENT_ROWS:
                yield _pack(key, rings.pop(key), checksums)
                buffered -= ring.rows * size
        if buffered > _BUFFER_BYTES:
            for key in list(rings):
                yield _pack(key, rings.pop(key), checksums)
            buffered = 0
    for key in list(rings):
        yield _pack(key, rings.pop(key), checksums)
    for raw in process.foreign_segments():
        checksums.append(raw[0])
        yield raw[1]


def _pack(key: tuple[int, int, int], ring: _Ring, checksums: list[int]) -> bytes:
    record_id, tid, ring_id = key
    raw = ring.parts[0] if len(ring.parts) == 1 else b"".join(ring.parts)
    codec, payload = encode(np.frombuffer(raw, dtype=ring.layout.dtype), raw)
    if not _equal(decode(codec, payload, ring.rows, ring.layout.dtype), raw):
        raise FormatError(f"{ring.layout.name} rows do not survive packing")
    checksums.append(zlib.crc32(payload))
    return pack_segment(
        payload,
        record_id=record_id,
        codec=codec,
        tid=tid,
        ring_id=ring_id,
        row_count=ring.rows,
        first_sequence=ring.first_sequence,
    )


def _equal(rows: npt.NDArray[np.void], raw: bytes) -> bool:
    """Whether rows have these bytes, without a copy of them."""
    word = np.uint64 if len(raw) % 8 == 0 else np.uint8
    return np.array_equal(rows.view(np.uint8).view(word), np.frombuffer(raw, dtype=word))


def _check(path: str, checksums: list[int]) -> None:
    """Read back what was written: the head, every segment in its place, every payload."""
    with ByteFile(path) as source:
        head = read_head(source)
        segments, skipped, torn, _ = scan_segments(source, head.data_offset)
        found = [zlib.crc32(source.read(s.payload_offset, s.payload_bytes)) for s in segments]
    if skipped or torn or found != checksums or not head.merged:
        raise FormatError(f"{path} does not read back as written")


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _sync_directory(path: str) -> None:
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
