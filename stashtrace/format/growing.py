"""Files of processes that still write: each row is read once, and let go of when a caller needs it no longer.

``GrowingRun.look`` takes in what was written since the last look; its files then answer as those of
``format.reader.open_run`` do. Rows that the ring holds now are in no look's memory: the next one finds them again, in
the ring or in the file.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import FormatError
from stashtrace.format.container import ByteFile, Segment, scan_segments
from stashtrace.format.reader import RawRun, link_forks, read_run_facts, start_ns
from stashtrace.format.ring import read_ring
from stashtrace.format.stash_file import Chunk, StashFile, joined_texts
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import LossRow

#: Records without which rows cannot be understood, whatever their age; of all others, those of a window are enough.
_LASTING = frozenset(
    {
        *("string_part", "thread_info", "metadata", "loss", "clock_ping"),
        *("group", "group_count", "group_peer", "nccl_comm", "device_info", "stream_info"),
    }
)
#: Records that a training loop may write any number of within a step. Without them a step has less to explain it, but
#: still its number and its length.
_BULKY = frozenset(
    {
        *("io_op", "io_op_long", "thread_wait", "task_sample", "process_sample", "host_sample", "net_sample"),
        *("counter", "instant", "device_call", "device_sample", "kernel", "nccl_channel", "nccl_proxy"),
    }
)


class GrowingFile(StashFile):
    """One process that writes while it is read."""

    def __init__(self, path: str, at_ns: int) -> None:
        super().__init__(path)
        self._rows: dict[int, npt.NDArray[np.void] | None] = {}  # by the offset of the segment's payload
        #: When each segment was first seen: its rows are older.
        self._seen_ns: dict[int, int] = {}
        self._whole_texts: dict[int, str] = {}
        #: Rows of texts whose parts are not all there yet.
        self._text_parts: list[npt.NDArray[np.void]] = []
        self._newest_ns = at_ns
        new, self.segments = self.segments, []
        self._take_in(new, at_ns)

    @property
    def is_open(self) -> bool:
        """Whether the process had not ended in order at the last look."""
        return self.has_ring

    @property
    def held_bytes(self) -> int:
        """Size of the rows in memory."""
        return sum(rows.nbytes for rows in self._rows.values() if rows is not None)

    @property
    def newest_ns(self) -> int:
        """When rows were last found in the file."""
        return self._newest_ns

    def look_again(self, at_ns: int) -> None:
        """Take in what was written since the last look; ``at_ns``: the time now.

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
        """Read the rows of new segments; texts are put together here, and their rows are not kept."""
        if new:
            self._newest_ns = at_ns
        with ByteFile(self.path) as source:
            for segment in new:
                layout = self.layouts.get(segment.record_id)
                if layout is None:
                    continue
                rows = self._rows_of(source, segment, layout)
                if layout.name == "string_part":
                    self._text_parts += [] if rows is None else [rows]
                    continue
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
        """Let go of rows that were there at a look before a time, but for those that are needed for good."""
        kept = [s for s in self.segments if self._seen_ns[s.payload_offset] >= before_ns or self._lasts(s)]
        for segment in self.segments if len(kept) < len(self.segments) else ():
            if self._seen_ns[segment.payload_offset] < before_ns and not self._lasts(segment):
                del self._seen_ns[segment.payload_offset], self._rows[segment.payload_offset]
        self.segments = kept
        self._by_thread = self._row_counts = None

    def forget_bulky(self, before_ns: int) -> None:
        """Let go of rows that were there at a look before a time, and of which a step may have any number."""
        for s in self.segments:
            if self._name_of(s.record_id) in _BULKY and self._seen_ns[s.payload_offset] < before_ns:
                self._rows[s.payload_offset] = None

    def bulky_seen_ns(self) -> list[int]:
        """Return when each segment of which :meth:`forget_bulky` may let go was first seen."""
        bulky = (s for s in self.segments if self._name_of(s.record_id) in _BULKY)
        return [self._seen_ns[s.payload_offset] for s in bulky if self._rows[s.payload_offset] is not None]

    def _lasts(self, segment: Segment) -> bool:
        return self._name_of(segment.record_id) in _LASTING

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
    """A run directory whose processes still write; the files of one host, if a boot id is given.

    ``path``: the directory. ``boot_id``: of the host; others write here too. ``is_wanted``: told the metadata of a
    file; the others are left alone.
    """

    def __init__(self, path: str, is_wanted: Callable[[Mapping[str, Any]], bool] = lambda metadata: True) -> None:
        self.path = path
        self._is_wanted = is_wanted
        self._files: dict[str, GrowingFile] = {}
        #: Names of files that hold nothing for us, now or ever.
        self._ignored: set[str] = set()
        self._losses: list[LossRow] = []

    @property
    def files(self) -> Collection[GrowingFile]:
        """The files of the last look."""
        return self._files.values()

    def look(self, at_ns: int) -> RawRun:
        """Take in what was written since the last look; ``at_ns``: the time now.

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
        """Let go of rows that were there at a look before a time, and of processes that had ended by then.

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

    def _is_parent(self, file: GrowingFile) -> bool:
        return any(other.parent is file for other in self._files.values())
