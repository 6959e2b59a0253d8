"""One process image on disk: its .stash and, while it runs or after it was killed, its .ring.

Made by ``reader.open_run``; ``load`` gives the rows of chosen record types as ``RawProcess``. Reading is
one ``np.frombuffer`` a segment; rows of a ring continue where its last segment ends.
"""

from __future__ import annotations

import errno
import itertools
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import FormatError
from stashtrace.format import container
from stashtrace.format.codec import decode
from stashtrace.format.project import Layout, current_layouts, layouts, project
from stashtrace.format.ring import Ring, RingImage, read_ring
from stashtrace.schema.groupby import Bools
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import LossRow, RawProcess, RawRecords

#: Bytes of a text that one row of ``string_part`` holds.
PART_BYTES = 56


_DROPPED = "rows of earlier steps were dropped: only the last steps are kept, as asked"
#: (collector, reason, severity, advice)
_Loss = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one ring, as the file lays them out."""

    layout: Layout
    tid: int
    ring_id: int
    first_sequence: int
    rows: npt.NDArray[np.void]


class StashFile:
    """Head and segment index of one process; rows are read by :meth:`load` and :meth:`chunks`.

    ``path``: the .stash file; the .ring next to it is found by name. ``strict``: raise on damage that otherwise becomes
    a loss row.
    """

    def __init__(self, path: str, *, strict: bool = False) -> None:
        self.path = path
        self.name = os.path.basename(path).removesuffix(".stash")
        self.strict = strict
        self._ring: RingImage | None = None
        self._losses: Counter[_Loss] = Counter()
        #: Those that the .ring mentions, and texts that lack parts.
        self._ring_losses: Counter[_Loss] = Counter()
        #: Rows that are there and cannot be read; a merge carries them along.
        self._unread: Counter[_Loss] = Counter()
        self._by_thread: dict[int, list[int]] | None = None  # numbers of segments
        self._row_counts: dict[str, int] | None = None
        self._own_texts: dict[int, str] | None = None
        self._all_texts: dict[int, str] | None = None
        #: File of the process this one was forked from; its string ids are valid here too. Set by open_run.
        self.parent: StashFile | None = None
        self._reported: set[int] = set()  # payload offsets of damaged segments: rows may be read more than once
        # The .ring first: what is drained meanwhile is then found in the file and recognised as the same rows.
        ring_error: FormatError | None = None
        try:
            self._ring = read_ring(self.ring_path)
        except FormatError as error:
            ring_error = error
        with container.ByteFile(path, appended=True) as source:
            self.head: container.FileHead = container.read_head(source)
            self.segments, skipped, torn, self._scanned_to = container.scan_segments(source, self.head.data_offset)
            self.size_bytes = source.size
        if self.head.merged:
            self._ring = None
        elif ring_error is not None:
            if strict:
                raise ring_error
            advice = f"{ring_error}: an unknown number of rows is missing"
            self._lose("format", "unreadable_ring", 1, advice)
        self.layouts = layouts(self.head.records)
        if self._ring is None:  # else rows of a torn end are still in the .ring: given up only when written
            skipped += torn
        if skipped:
            self._damage("damaged_bytes", skipped, f"{self.name}.stash ends early or was damaged; the rest was read")
        #: Rows that were dropped on purpose and have not yet been seen as a gap in their ring.
        self._dropped_rows = 0
        #: Sequence after the last row of each ring in the file.
        self._ring_ends: dict[tuple[int, int], int] = {}
        self._account_for_segments(self.segments)
        self._account_for_merged()
        self._account_for_ring_file()

    @property
    def ring_path(self) -> str:
        """Path of the .ring file, whether it is there or not."""
        return self.path.removesuffix(".stash") + ".ring"

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the file header."""
        return self.head.metadata

    @property
    def has_ring(self) -> bool:
        """Whether a .ring file with rows belongs to this file."""
        return self._ring is not None

    @property
    def losses(self) -> list[LossRow]:
        """Losses found so far; damaged payloads are found while rows are read."""
        return [*self.lasting_losses, *((c, r, s, n, a) for (c, r, s, a), n in self._unread.items())]

    @property
    def lasting_losses(self) -> list[LossRow]:
        """Losses that a rewritten file has to carry along; each reader finds the others in its rows."""
        return [(c, r, s, n, a) for (c, r, s, a), n in (self._losses + self._ring_losses).items()]

    def row_counts(self) -> dict[str, int]:
        """Rows of each record name, from the headers alone; the caller must not change the dict."""
        if self._row_counts is None:
            self._row_counts = self._count_rows()
        return self._row_counts

    def _count_rows(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for segment in self.segments:
            layout = self.layouts.get(segment.record_id)
            counts[layout.name if layout else f"record_{segment.record_id:#x}"] += segment.row_count
        for layout, _tid, _ring, rows in self._ring_parts():
            counts[layout.name] += rows[1]
        return dict(counts)

    def thread_ids(self) -> list[int]:
        """Threads that wrote something other than texts, ascending."""
        tids = {s.tid for s in self.segments if self._name_of(s.record_id) not in ("", "string_part")}
        tids |= {tid for layout, tid, _, _ in self._ring_parts() if layout.name != "string_part"}
        return sorted(tids)

    def thread_row_counts(self, records: Collection[str]) -> dict[int, Counter[str]]:
        """Rows of each record name of each thread, from the headers alone."""
        counts: dict[int, Counter[str]] = {}
        for segment in self.segments:
            if (name := self._name_of(segment.record_id)) in records:
                counts.setdefault(segment.tid, Counter())[name] += segment.row_count
        for layout, tid, _, rows in self._ring_parts():
            if layout.name in records:
                counts.setdefault(tid, Counter())[layout.name] += rows[1]
        return counts

    def chunks(self, records: Collection[str] | None = None, tids: Collection[int] | None = None) -> Iterator[Chunk]:
        """Rows of the named records and threads, all if None: segments in file order, then the .ring."""
        with container.ByteFile(self.path, appended=True) as source:
            for segment in self.segments if tids is None else self._segments_of(tids):
                layout = self.layouts.get(segment.record_id)
                if layout is None or (records is not None and layout.name not in records):
                    continue
                rows = self._rows_of(source, segment, layout)
                if rows is not None and len(rows):
                    yield Chunk(layout, segment.tid, segment.ring_id, segment.first_sequence, rows)
        yield from self._ring_chunks(records, tids)

    def _ring_chunks(self, records: Collection[str] | None, tids: Collection[int] | None) -> Iterator[Chunk]:
        for layout, tid, ring_id, (first, count, data) in self._ring_parts():
            if (records is None or layout.name in records) and (tids is None or tid in tids):
                yield Chunk(layout, tid, ring_id, first, np.frombuffer(data, dtype=layout.dtype, count=count))

    def foreign_segments(self) -> Iterator[tuple[int, bytes]]:
        """Segments of records that the field table does not describe, as they are: (checksum, bytes)."""
        with container.ByteFile(self.path) as source:
            for s in self.segments:
                if s.record_id not in self.layouts and s.record_id != container.DROPPED_RECORD:
                    yield (
                        s.payload_crc32,
                        container.pack_segment(
                            source.read(s.payload_offset, s.payload_bytes),
                            record_id=s.record_id,
                            codec=s.codec,
                            tid=s.tid,
                            ring_id=s.ring_id,
                            row_count=s.row_count,
                            first_sequence=s.first_sequence,
                        ),
                    )

    def load(self, records: Collection[str] | None = None) -> RawProcess:
        """Rows of the named record types, all if None, projected onto today's schema."""
        if self._own_texts is not None or records is None:
            rows = self._records(records)
        else:  # the file is read once for its texts as well
            rows = self._records({*records, "string_part"})
            parts = rows["string_part"] if "string_part" in records else rows.pop("string_part", None)
            self._own_texts = _decoded(self._joined_texts(parts))
        return RawProcess(self.name, self.metadata, rows, self.texts(), self.losses)

    def texts(self) -> dict[int, str]:
        """String id -> text, with those of the process this one was forked from."""
        if self._own_texts is None:
            self._own_texts = _decoded(self.text_bytes())
        if self.parent is None:
            return self._own_texts
        if self._all_texts is None:  # asked for with each piece of the rows
            self._all_texts = {**self.parent.texts(), **self._own_texts}
        return self._all_texts

    def text_bytes(self) -> dict[int, bytes]:
        """String id -> text as it was written, without those of the parent."""
        return self._joined_texts(self._records(("string_part",)).get("string_part"))

    def _joined_texts(self, parts: RawRecords | None) -> dict[int, bytes]:
        """String id -> text of the rows of ``string_part``."""
        if parts is None:
            return {}
        texts, incomplete = joined_texts(parts.rows)
        self._count_incomplete(len(incomplete))
        return texts

    def _count_incomplete(self, count: int) -> None:
        key = ("core", "incomplete_strings", int(Severity.DATA_LOSS), "parts of some texts were not recorded")
        self._ring_losses.pop(key, None)
        if count:
            self._ring_losses[key] = count

    # Rows ---------------------------------------------------------------------------------------

    def _segments_of(self, tids: Collection[int]) -> list[container.Segment]:
        """Segments of these threads in file order, from an index: a file that is read in pieces asks often."""
        if self._by_thread is None:
            self._by_thread = {}
            for number, segment in enumerate(self.segments):
                self._by_thread.setdefault(segment.tid, []).append(number)
        numbers = sorted(number for tid in tids for number in self._by_thread.get(tid, ()))
        return [self.segments[number] for number in numbers]

    def _records(self, names: Collection[str] | None) -> dict[str, RawRecords]:
        current = current_layouts()
        pieces: dict[str, list[Chunk]] = {}
        for chunk in self.chunks(names):
            if chunk.layout.name in current and (names is not None or chunk.layout.name != "string_part"):
                pieces.setdefault(chunk.layout.name, []).append(chunk)
        return {name: join_chunks(pieces.pop(name), current[name].dtype) for name in list(pieces)}

    def _rows_of(
        self, source: container.ByteFile, segment: container.Segment, layout: Layout
    ) -> npt.NDArray[np.void] | None:
        payload = source.read(segment.payload_offset, segment.payload_bytes)
        try:
            if len(payload) != segment.payload_bytes or zlib.crc32(payload) != segment.payload_crc32:
                raise FormatError("checksum does not match")
            return decode(segment.codec, payload, segment.row_count, layout.dtype)
        except FormatError as error:
            if segment.payload_offset not in self._reported:
                advice = f"{self.name}.stash: {layout.name} rows are damaged ({error})"
                self._damage("damaged_rows", segment.row_count, advice, layout.collector)
                self._reported.add(segment.payload_offset)
            return None

    def _ring_parts(self) -> Iterator[tuple[Layout, int, int, tuple[int, int, bytes]]]:
        """What the .ring adds to the segments: (layout, tid, ring id, (first sequence, rows, bytes))."""
        for ring in self._ring.rings if self._ring else ():
            layout = self.layouts.get(ring.record_id)
            if layout is None or layout.dtype.itemsize != ring.row_bytes:
                continue
            drained = max(ring.first_sequence, self._ring_ends.get((ring.record_id, ring.ring_id), 0))
            for begin, end in ring.kept_runs(drained):
                data = ring.rows[(begin - ring.first_sequence) * ring.row_bytes :]
                yield layout, ring.tid, ring.ring_id, (begin, end - begin, data)

    def _name_of(self, record_id: int) -> str:
        layout = self.layouts.get(record_id)
        return layout.name if layout else ""

    # Losses -------------------------------------------------------------------------------------

    def _account_for_segments(self, segments: Iterable[container.Segment]) -> None:
        """Note where each ring ends in the file; gaps between segments become losses."""
        for segment in segments:
            if segment.record_id == container.DROPPED_RECORD:
                self._dropped_rows += segment.row_count
                self._losses["core", "dropped_rows", int(Severity.INFO), _DROPPED] += segment.row_count
                continue
            layout = self.layouts.get(segment.record_id)
            if layout is None or layout.name not in current_layouts():
                name = layout.name if layout else f"record {segment.record_id:#x}"
                collector = layout.collector if layout else "format"
                advice = f"{name} rows were written by another version of stashtrace and are skipped"
                self._unread[collector, "unknown_record_rows", int(Severity.INFO), advice] += segment.row_count
            ring = segment.record_id, segment.ring_id
            self._gap(self._ring_ends, self._losses, ring, segment.first_sequence, segment.row_count)

    def _account_for_merged(self) -> None:
        """Take over the losses that the merge wrote into the head."""
        for row in self.metadata.get("losses", ()) if self.head.merged else ():
            collector, reason, severity, count, advice = row
            key = (str(collector), str(reason), int(severity), str(advice))
            if key not in self._unread:  # merges once wrote these down too
                self._losses[key] += int(count)

    def _account_for_ring_file(self) -> None:
        """Count what the .ring says is lost; its rows continue where the rings end in the .stash."""
        self._ring_losses.clear()
        if self._ring is None:
            return
        ends, losses = dict(self._ring_ends), self._ring_losses
        for ring in self._ring.rings:
            layout = self.layouts.get(ring.record_id)
            collector = layout.collector if layout else "format"
            if ring.dropped:
                reason, what = _loss_cause(
                    self._ring.write_error, "lane_full_rows", "came faster than they could be written"
                )
                advice = f"{layout.name if layout else 'some'} rows {what}"
                self._lose(collector, reason, ring.dropped, advice, losses)
            if layout is None or layout.dtype.itemsize != ring.row_bytes:
                advice = f"{self.name}.ring holds rows that its .stash does not describe"
                self._lose(collector, "unknown_record_rows", ring.row_count, advice, losses)
            else:
                self._account_for_rows(ring, collector, ends.get((ring.record_id, ring.ring_id), 0))
                self._gap(ends, losses, (ring.record_id, ring.ring_id), ring.first_sequence, ring.row_count)
        if self._ring.lost_rows:
            reason, what = _loss_cause(
                self._ring.grow_error, "lost_lane_rows", "of more threads than the ring file could grow for"
            )
            self._lose("core", reason, self._ring.lost_rows, f"rows {what}", losses)
        if self._ring.damaged_rings:
            advice = f"{self.name}.ring lacks whole rings: an unknown number of rows is missing"
            self._damage("damaged_lanes", self._ring.damaged_rings, advice, losses=losses)
        if not self._ring.has_header:
            advice = f"{self.name}.ring lacks its header: whether rows found no place in it is unknown"
            self._damage("damaged_ring_header", 1, advice, losses=losses)

    def _account_for_rows(self, ring: Ring, collector: str, drained: int) -> None:
        """Count the rows that a ring published and no longer holds, but for those that the file has."""
        if ring.gone is None:
            return
        count = int(ring.gone[max(drained - ring.first_sequence, 0) :].sum())
        if count:
            advice = f"{self.name}.ring ends early or has holes: it published rows that it no longer holds"
            self._damage("lost_ring_rows", count, advice, collector, self._ring_losses)

    def _gap(
        self, ends: dict[tuple[int, int], int], losses: Counter[_Loss], ring: tuple[int, int], first: int, count: int
    ) -> None:
        expected = ends.get(ring, 0)
        missing = 0 if self.head.merged else max(first - expected, 0)
        known = min(missing, self._dropped_rows)  # a gap that dropped rows have left
        self._dropped_rows -= known
        if missing > known:
            layout = self.layouts.get(ring[0])
            advice = f"{self.name}.stash lacks rows that were written to it"
            self._damage("missing_rows", missing - known, advice, layout.collector if layout else "format", losses)
        ends[ring] = max(expected, first + count)

    def _lose(self, collector: str, reason: str, count: int, advice: str, losses: Counter[_Loss] | None = None) -> None:
        losses = self._losses if losses is None else losses
        losses[(collector, reason, int(Severity.DATA_LOSS), advice)] += count

    def _damage(
        self, reason: str, count: int, advice: str, collector: str = "format", losses: Counter[_Loss] | None = None
    ) -> None:
        if self.strict:
            raise FormatError(advice)
        self._lose(collector, reason, count, advice, losses)


def joined_texts(rows: npt.NDArray[np.void]) -> tuple[dict[int, bytes], set[int]]:
    """Return string id -> text of rows of ``string_part``, and the ids whose parts are not all there.

    A text that lacks a part is cut there and ends in an ellipsis.
    """

    def columns(chosen: Bools) -> Iterator[tuple[int, int, int, bytes]]:
        fields = (rows[name][chosen].tolist() for name in ("string_id", "part", "length_bytes", "text"))
        return zip(*fields, strict=True)

    is_whole = (rows["part"] == 0) & (rows["length_bytes"] <= PART_BYTES)
    texts = {string_id: text[:length] for string_id, _, length, text in columns(is_whole)}
    parts: dict[int, dict[int, bytes]] = {}
    lengths: dict[int, int] = {}
    for string_id, part, length, text in columns(~is_whole):
        parts.setdefault(string_id, {})[part] = text
        lengths[string_id] = length
    incomplete = set()
    for string_id, known in parts.items():
        count = -(-lengths[string_id] // PART_BYTES)
        kept = list(itertools.takewhile(known.__contains__, range(count)))
        data = b"".join(known[part].ljust(PART_BYTES, b"\0") for part in kept)[: lengths[string_id]]
        texts[string_id] = data + (b"" if len(kept) == count else "…".encode())
        if len(kept) != count:
            incomplete.add(string_id)
    return texts, incomplete


def _decoded(texts: dict[int, bytes]) -> dict[int, str]:
    """Return the texts as strings: all of them at once, unless one holds the character that parts them."""
    listed = b"\0".join(texts.values()).decode("utf-8", "replace").split("\0")
    if len(listed) != len(texts):
        listed = [text.decode("utf-8", "replace") for text in texts.values()]
    return dict(zip(texts, listed, strict=True))


def _loss_cause(error: int, reason: str, what: str) -> tuple[str, str]:
    """Return why rows of a ring were lost: what the run directory answered (errno), or else the given cause."""
    if not error:
        return reason, what
    if error in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "no_space_rows", "found no space in the run directory"
    return "not_written_rows", f"could not be written to the run directory: {os.strerror(error)}"


def join_chunks(chunks: list[Chunk], dtype: np.dtype[np.void]) -> RawRecords:
    """Rows of one record type, grouped by thread, each thread in the order written."""
    chunks.sort(key=lambda c: c.tid)
    rows = [project(c.rows, dtype) for c in chunks]
    tids = np.repeat(np.array([c.tid for c in chunks], dtype=np.uint32), [len(r) for r in rows])
    if len(rows) == 1:
        return RawRecords(rows[0], tids)
    # Of structured arrays numpy joins the types again, pair by pair: that costs 100 times what their bytes do.
    joined = bytearray().join(np.ascontiguousarray(part).data for part in rows)
    return RawRecords(np.frombuffer(joined, dtype=dtype), tids)


# Rows of a process in pieces of bounded size, for the one table that may not fit into memory twice.
#
# Threads come in ascending order; small ones share a piece, a large one
# is cut where a call ends before the next begins, as they do unless a signal handler did I/O.

PIECE_ROWS = 1 << 16  # a segment of a merged file: columns stay in the cache, and nothing is copied together


def pieces(file: StashFile, records: Collection[str], rows: int = PIECE_ROWS) -> Iterator[RawProcess]:
    """The rows of ``file.load(records)`` in pieces of about ``rows``.

    ``file``: process to read. ``records``: record names; each must have the field ``begin_ticks``. ``rows``: a piece
    has at most about twice as many.
    """
    counts = file.thread_row_counts(records)
    for group in _groups({tid: sum(c.values()) for tid, c in counts.items()}, rows):
        if len(group) == 1 and sum(counts[group[0]].values()) > 2 * rows:
            yield from _cut_thread(file, records, group[0], counts[group[0]], rows)
        else:
            chunks: dict[str, list[Chunk]] = {}
            for chunk in file.chunks(records, set(group)):
                chunks.setdefault(chunk.layout.name, []).append(chunk)
            current = current_layouts()
            yield _piece(file, {n: join_chunks(c, current[n].dtype) for n, c in chunks.items() if n in current})


def _groups(counts: Mapping[int, int], rows: int) -> Iterator[list[int]]:
    """Threads in ascending order, as many together as make a piece."""
    group: list[int] = []
    gathered = 0
    for tid in sorted(counts):
        if group and gathered + counts[tid] > rows:
            yield group
            group, gathered = [], 0
        group.append(tid)
        gathered += counts[tid]
    if group:
        yield group


def _cut_thread(
    file: StashFile, records: Collection[str], tid: int, counts: Counter[str], rows: int
) -> Iterator[RawProcess]:
    """One large thread: its main record as it comes, rows of the others up to the last begin of each piece."""
    current = current_layouts()
    main = max((n for n in counts if n in current), key=counts.__getitem__, default="")
    if not main:
        return
    others: dict[str, RawRecords] = {}
    for name in set(records) - {main}:
        if chunks := list(file.chunks((name,), {tid})):
            others[name] = join_chunks(chunks, current[name].dtype)
    waiting: list[Chunk] = []
    for chunk in file.chunks((main,), {tid}):
        waiting.append(chunk)
        if sum(len(c.rows) for c in waiting) >= rows:
            joined = join_chunks(waiting, current[main].dtype)
            waiting = []
            until = joined.rows["begin_ticks"].max()
            piece = {main: joined}
            for name, held in others.items():
                early = held.rows["begin_ticks"] <= until
                if early.any():
                    piece[name] = RawRecords(held.rows[early], held.tid[early])
                    others[name] = RawRecords(held.rows[~early], held.tid[~early])
            yield _piece(file, piece)
    rest = {name: held for name, held in others.items() if len(held.rows)}
    if waiting:
        rest[main] = join_chunks(waiting, current[main].dtype)
    if rest:
        yield _piece(file, rest)


def _piece(file: StashFile, records: Mapping[str, RawRecords]) -> RawProcess:
    return RawProcess(file.name, file.metadata, records, file.texts())
