"""Files of processes that still write: each row is read once, and let go of when a caller needs it no longer.

``GrowingRun.take_in`` takes in what was written since the last round; its files then answer as those of
``format.reader.open_run`` do. Rows that the ring holds now are in no round's memory: the next one finds them again, in
the ring or in the file.
"""

from __future__ import annotations

import copy
import ctypes
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace.errors import FormatError
from stashtrace.format.container import SEGMENT_HEADER, ByteFile, Segment, dropped_header, padded, scan_segments
from stashtrace.format.reader import RawRun, link_forks, read_run_facts, start_ns
from stashtrace.format.ring import PAGE_BYTES, read_ring
from stashtrace.format.stash_file import Chunk, StashFile, joined_texts
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import LossRow

#: Records without which rows cannot be understood, whatever their age; of all others, those of a window are enough.
LASTING = frozenset(
    {
        *("string_part", "thread_info", "metadata", "loss", "clock_ping"),
        *("group", "group_count", "group_peer", "nccl_comm", "device_info", "stream_info", "stack_frame"),
    }
)
#: Readings of clocks stay this much longer than other rows: those before a row are needed to place it in time.
CLOCKS_NS = 20_000_000_000
_CLOCKS = ("clock_sync", "device_clock")
#: Rows that were let go of can be read again from the file for this long.
RECALLED_NS = 120_000_000_000
#: Records that a training loop may write any number of within a step. Without them a step has less to explain it, but
#: still its number and its length.
_BULKY = frozenset(
    {
        *("io_op", "io_op_long", "thread_wait", "task_sample", "process_sample", "host_sample", "net_sample"),
        *("counter", "instant", "device_call", "device_sample", "kernel", "nccl_channel", "nccl_proxy"),
    }
)
#: Smaller ranges stay until more rows next to them are let go of: holes are whole pages.
_LEAST_HOLE_BYTES = 1 << 14
#: The length of a segment has 32 bits.
_LONGEST_BYTES = 1 << 30
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def _pages(begin: int, end: int) -> tuple[int, int]:
    """Return the range of whole pages inside a range; its end may lie before its begin."""
    return -(-begin // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES


def punch_hole(descriptor: int, begin: int, end: int) -> int:
    """Replace the whole pages of a range of a file by a hole; return how many bytes that frees.

    Raises OSError if the file system has no holes.
    """
    begin, end = _pages(begin, end)
    if begin >= end:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    libc.fallocate64.argtypes = arguments
    if libc.fallocate64(descriptor, _PUNCH_HOLE | _KEEP_SIZE, begin, end - begin):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return end - begin


class Range(NamedTuple):
    """Segments that lie side by side in a file: when their rows were seen, and where each begins."""

    begin: int
    end: int
    rows_count: int
    seen_ns: int
    parts: tuple[int, ...]

    @classmethod
    def of(cls, segment: Segment, seen_ns: int) -> Range:
        begin = segment.payload_offset - SEGMENT_HEADER.size
        end = segment.payload_offset + padded(segment.payload_bytes)
        return cls(begin, end, segment.row_count, seen_ns, (begin,))

    @property
    def hole_bytes(self) -> int:
        """Whole pages behind the header that stands in the place of the segments."""
        begin, end = _pages(self.begin + SEGMENT_HEADER.size, self.end)
        return max(end - begin, 0)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Join ranges that follow each other without a gap; those of one call are in order."""
    joined: list[Range] = []
    for one in ranges:
        last = joined[-1] if joined else None
        if last is not None and last.end == one.begin and one.end - last.begin < _LONGEST_BYTES:
            parts = (*last.parts, *one.parts)
            rows_count, seen_ns = last.rows_count + one.rows_count, max(last.seen_ns, one.seen_ns)
            joined[-1] = Range(last.begin, one.end, rows_count, seen_ns, parts)
        else:
            joined.append(one)
    return joined


class Holes:
    """Ranges of a file whose rows are needed no longer, and the holes in their place so far."""

    def __init__(self) -> None:
        self._released: list[Range] = []
        #: Without parts.
        self._holes: list[Range] = []

    def release(self, one: Range) -> None:
        """Take a range that may become a hole."""
        self._released.append(one)

    def punch(self, path: str, before_ns: int) -> int:
        """Give the space of ranges that were seen before a time back to the file system; return how many bytes.

        A header in their place says how many rows there were, so that a reader takes the gap for no damage. Raises
        OSError if the file system cannot: the rows stay.
        """
        old = [one for one in self._released if one.seen_ns < before_ns]
        # A hole grows at its end, and two join once what lay between them goes: else each leaves a page with its
        # header, and a file grows with the run for all that.
        joined = [one for one in _joined(sorted([*old, *self._holes])) if one.parts]
        ready = [one for one in joined if one.end - one.begin >= _LEAST_HOLE_BYTES]
        if not ready:
            return 0
        freed = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for one in ready:
                freed += punch_hole(descriptor, one.begin + SEGMENT_HEADER.size, one.end)
                os.pwrite(descriptor, dropped_header(one.end - one.begin, one.rows_count), one.begin)
                within = [hole for hole in self._holes if one.begin <= hole.begin < one.end]
                freed -= sum(hole.hole_bytes for hole in within)
                self._holes = sorted([*(h for h in self._holes if h not in within), one._replace(parts=())])
        finally:
            os.close(descriptor)
        done = {at for one in ready for at in one.parts}
        self._released = [one for one in self._released if one.begin not in done]
        return freed


class GrowingFile(StashFile):
    """One process that writes while it is read."""

    def __init__(self, path: str, at_ns: int) -> None:
        super().__init__(path)
        self._rows: dict[int, npt.NDArray[np.void] | None] = {}  # by the offset of the segment's payload
        #: When each segment was first seen: its rows are older.
        self._seen_ns: dict[int, int] = {}
        self._whole_texts: dict[int, str] = {}
        #: Of the ranges whose rows were let go of; see :meth:`drop`.
        self._holes = Holes()
        #: Segments whose rows were let go of, and when each was first seen: the last of them can be read again.
        self._let_go: deque[tuple[Segment, int]] = deque()
        #: Rows of texts whose parts are not all there yet.
        self._text_parts: list[npt.NDArray[np.void]] = []
        #: When rows were last found in the file.
        self.newest_ns = at_ns
        new, self.segments = self.segments, []
        self._take_in(new, at_ns)

    @property
    def is_open(self) -> bool:
        """Whether the process had not ended in order at the last round."""
        return self.has_ring

    @property
    def held_bytes(self) -> int:
        """Size of the rows in memory."""
        return sum(rows.nbytes for rows in self._rows.values() if rows is not None)

    def look_again(self, at_ns: int) -> None:
        """Take in what was written since the last round; ``at_ns``: the time now.

        Raises FormatError if the file cannot be read any more.
        """
        # The ring first: what is drained meanwhile is then found in the file and recognised as the same rows.
        self._ring = read_ring(self.ring_path)
        with ByteFile(self.path) as source:
            new, skipped, _, self._scanned_to = scan_segments(source, self._scanned_to)
            self.size_bytes = source.size
        if skipped:
            self._damage("damaged_bytes", skipped, f"{self.name}.stash was damaged; the rest was read")
        self._account_for_segments(new)
        self._account_for_ring_file()
        self._take_in(new, at_ns)

    def _take_in(self, new: Sequence[Segment], at_ns: int) -> None:
        """Read the rows of new segments, and put texts together as their parts come."""
        if new:
            self.newest_ns = at_ns
        with ByteFile(self.path) as source:
            for segment in new:
                layout = self.layouts.get(segment.record_id)
                if layout is None:
                    continue
                rows = self._rows_of(source, segment, layout)
                if layout.name == "string_part" and rows is not None:
                    self._text_parts.append(rows)
                self.segments.append(segment)
                self._rows[segment.payload_offset] = rows
                self._seen_ns[segment.payload_offset] = at_ns
        if self._text_parts:
            rows = np.concatenate(self._text_parts)
            texts, incomplete = joined_texts(rows)
            for string_id in texts.keys() - incomplete:
                self._whole_texts[string_id] = texts[string_id].decode("utf-8", "replace")
            left = rows[np.isin(rows["string_id"], list(incomplete))]
            self._text_parts = [left] if len(left) else []
        self._by_thread = self._row_counts = self._own_texts = self._all_texts = None

    def forget(self, before_ns: int) -> None:
        """Let go of rows that were there at a round before a time, but for those that are needed for good."""
        kept = []
        for segment in self.segments:
            name, seen_ns = self._name_of(segment.record_id), self._seen_ns[segment.payload_offset]
            if name in LASTING or seen_ns >= before_ns - self._stays_ns(segment):
                kept.append(segment)
                continue
            self._holes.release(Range.of(segment, seen_ns))
            self._let_go.append((segment, seen_ns))
            del self._seen_ns[segment.payload_offset], self._rows[segment.payload_offset]
        self.segments = kept
        while self._let_go and self._let_go[0][1] < before_ns - RECALLED_NS:
            self._let_go.popleft()
        self._by_thread = self._row_counts = None

    def recalled(self, since_ns: int) -> GrowingFile:
        """Return the file with the rows besides that were let go of and were not there yet at rounds before a time.

        They are read again. Raises FormatError if the file cannot be read any more.
        """
        back = [s for s, seen_ns in self._let_go if seen_ns >= since_ns - self._stays_ns(s)]
        if not back:
            return self
        file = copy.copy(self)
        with ByteFile(self.path) as source:
            read = {s.payload_offset: self._rows_of(source, s, self.layouts[s.record_id]) for s in back}
        file.segments = sorted([*back, *self.segments], key=lambda segment: segment.payload_offset)
        file._rows = {**self._rows, **read}
        file._by_thread = file._row_counts = None
        return file

    def _stays_ns(self, segment: Segment) -> int:
        """Return how much longer than other rows those of a segment stay."""
        return CLOCKS_NS if self._name_of(segment.record_id) in _CLOCKS else 0

    def drop(self, before_ns: int) -> int:
        """Give the space of rows that were let go of, and were there before a time, back to the file system.

        A header in their place says how many rows there were, so that a reader takes the gap for no damage. Returns how
        many bytes were freed. Raises OSError if the file system cannot: the rows stay.
        """
        freed = self._holes.punch(self.path, before_ns)
        self._let_go = deque(one for one in self._let_go if one[1] >= before_ns)
        return freed

    def forget_bulky(self, before_ns: int) -> None:
        """Let go of rows that were there at a round before a time, and of which a step may have any number."""
        for s in self.segments:
            if self._name_of(s.record_id) in _BULKY and self._seen_ns[s.payload_offset] < before_ns:
                self._rows[s.payload_offset] = None

    def bulky_seen_ns(self) -> list[int]:
        """Return when each segment of which :meth:`forget_bulky` may let go was first seen."""
        bulky = (s for s in self.segments if self._name_of(s.record_id) in _BULKY)
        return [self._seen_ns[s.payload_offset] for s in bulky if self._rows[s.payload_offset] is not None]

    def chunks(self, records: Collection[str] | None = None, tids: Collection[int] | None = None) -> Iterator[Chunk]:
        """Rows of the named records and threads, as :meth:`StashFile.chunks`, from memory."""
        for s in self.segments if tids is None else self._segments_of(tids):
            layout, rows = self.layouts[s.record_id], self._rows[s.payload_offset]
            if rows is not None and len(rows) and (records is None or layout.name in records):
                yield Chunk(layout, s.tid, s.ring_id, s.first_sequence, rows)
        yield from self._ring_chunks(records, tids)

    def texts(self) -> dict[int, str]:
        """String id -> text, with those of the process this one was forked from."""
        if self._own_texts is None:
            rows = [*self._text_parts, *(chunk.rows for chunk in self._ring_chunks(("string_part",), None))]
            late, incomplete = joined_texts(np.concatenate(rows)) if rows else ({}, set[int]())
            self._count_incomplete(len(incomplete - self._whole_texts.keys()))
            known = {i: text.decode("utf-8", "replace") for i, text in late.items()}
            self._own_texts = {**known, **self._whole_texts} if known else self._whole_texts
        return super().texts()


class GrowingRun:
    """A run directory whose processes still write.

    ``is_wanted``: takes the metadata of a file; where it returns False the file is left alone, as those of other hosts
    in a shared directory.
    """

    def __init__(self, path: str, is_wanted: Callable[[Mapping[str, Any]], bool] = lambda metadata: True) -> None:
        self.path = path
        self._is_wanted = is_wanted
        #: Rows that were there at a round before it may be in the files no longer.
        self.dropped_ns = -1
        self._files: dict[str, GrowingFile] = {}
        #: Names of files that hold nothing for us, now or ever.
        self._ignored: set[str] = set()

    @property
    def files(self) -> Collection[GrowingFile]:
        """The files of the last round."""
        return self._files.values()

    def take_in(self, at_ns: int) -> RawRun:
        """Take in what was written since the last round; ``at_ns``: the time now.

        Raises FormatError if the directory cannot be read.
        """
        losses: list[LossRow] = []
        try:
            names = os.listdir(self.path)
        except OSError as error:
            raise FormatError(f"cannot read {self.path}: {error.strerror}") from error
        stems = sorted(name.removesuffix(".stash") for name in names if name.endswith(".stash"))
        for stem in stems:
            if stem not in self._ignored:
                self._look_at(stem, at_ns, losses)
        processes = sorted(self._files.values(), key=start_ns)
        link_forks(processes)
        return RawRun(self.path, read_run_facts(self.path, losses), list(processes), losses)

    def _look_at(self, stem: str, at_ns: int, losses: list[LossRow]) -> None:
        known = self._files.get(stem)
        try:
            if known is not None:
                if known.is_open:  # one that has ended writes nothing more
                    known.look_again(at_ns)
                return
            file = GrowingFile(os.path.join(self.path, stem + ".stash"), at_ns)
        except FormatError as error:
            # A file that was made just now has no head yet; one that was replaced by its merged form is no longer ours.
            losses.append(("format", "unreadable_file", int(Severity.DATA_LOSS), 1, str(error)))
            return
        if file.head.merged or not self._is_wanted(file.metadata):
            self._ignored.add(stem)
        else:
            self._files[stem] = file

    def forget(self, before_ns: int, keep: Collection[str] = ()) -> None:
        """Let go of rows that were there at a round before a time, and of processes that had ended by then.

        ``keep``: names of files whose processes stay known, without their rows.
        """
        for stem, file in list(self._files.items()):
            file.forget(before_ns)
            if file.is_open or file.newest_ns >= before_ns or stem in keep or self._is_parent(file):
                continue
            del self._files[stem]
            self._ignored.add(stem)

    @property
    def held_bytes(self) -> int:
        """Size of the rows in memory."""
        return sum(file.held_bytes for file in self._files.values())

    def forget_half(self) -> int:
        """Let go of the older half of the rows of which a step may have any number; return up to when."""
        seen = sorted(time for file in self._files.values() for time in file.bulky_seen_ns())
        limit_ns = seen[len(seen) // 2] + 1 if seen else 0
        for file in self._files.values():
            file.forget_bulky(limit_ns)
        return limit_ns

    def drop(self, before_ns: int) -> int:
        """Give the space of rows that were let go of, and were there before a time, back to the file system.

        Returns how many bytes were freed. Raises OSError if the file system cannot.
        """
        self.dropped_ns = max(self.dropped_ns, before_ns)
        return sum(file.drop(before_ns) for file in self._files.values())

    def bytes_on_disk(self) -> int:
        """Return the space that the files take."""
        return sum(os.stat(file.path).st_blocks * 512 for file in self._files.values())

    def _is_parent(self, file: GrowingFile) -> bool:
        return any(other.parent is file for other in self._files.values())
