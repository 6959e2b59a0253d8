"""The framing of .stash files: header, field table, metadata, segments. Mirrors ``csrc/schema/container.h``.

Knows nothing of rows; ``project`` does. Never trusts a length or an offset that a checksum has not confirmed, and never
reads past the size the file had when opened.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from stashtrace.errors import FormatError, UnsupportedVersionError
from stashtrace.files.run_facts import json_object, valid_facts
from stashtrace.files.whole_files import open_regular

FILE_MAGIC = b"STASHTR\n"
SYNC_WORD = 0xD15C0B5E9A7E5EED
SYNC_BYTES = SYNC_WORD.to_bytes(8, "little")
CONTAINER_MAJOR = 1
CONTAINER_MINOR = 0
OLDEST_MAJOR = 1
FLAG_MERGED = 1
MAX_SEGMENT_ROWS = 1 << 20
#: Record of a segment whose rows were dropped because only the last steps of a run are kept. It stands in the place of
#: the segments that held them, has the number of their rows, and its payload is a hole in the file.
DROPPED_RECORD = 0xFFFF

FILE_HEADER = struct.Struct("<8sHHIIIQII")
SEGMENT_HEADER = struct.Struct("<QHHIIIQIIII")
_CHECKED_BYTES = 40  # of the segment header
_SCAN_BYTES = 1 << 20
#: A ``.stash`` of this size or less is read at once: its heads and segments are small, and each read is a system call.
_WHOLE_BYTES = 1 << 18


class Codec(IntEnum):
    """How the rows of a segment are packed."""

    RAW = 0
    COLUMNS = 1
    TEXTS = 2
    DEFLATE_TURNED = 3


class Segment(NamedTuple):
    """One segment header and where its payload lies."""

    record_id: int
    codec: int
    tid: int
    ring_id: int
    row_count: int
    first_sequence: int
    payload_bytes: int
    payload_crc32: int
    payload_offset: int


@dataclass(frozen=True, slots=True)
class FileHead:
    """Everything before the first segment."""

    major: int
    minor: int
    flags: int
    records: tuple[Any, ...]
    metadata: dict[str, Any]
    data_offset: int

    @property
    def merged(self) -> bool:
        """Whether the merge rewrote this file; a ring next to it is then stale."""
        return bool(self.flags & FLAG_MERGED)


class ByteFile:
    """Positional reads of a file up to the size it had when last looked at. Closed by ``with`` or ``close``.

    ``appended``: nothing but its end changes, so what is there may be read in advance.
    """

    def __init__(self, path: str, *, appended: bool = False) -> None:
        self.path = path
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        self.size = os.fstat(self._fd).st_size
        self._whole = self._read(0, self.size) if appended and self.size <= _WHOLE_BYTES else b""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at an offset; shorter at the end of the file."""
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        if offset + size <= len(self._whole):
            return self._whole[offset : offset + size]
        return self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise FormatError(f"cannot read {self.path}: {error.strerror}") from error
        return data

    def look_again(self) -> None:
        """Take in what was appended since the file was opened."""
        self.size = max(self.size, os.fstat(self._fd).st_size)

    def find(self, needle: bytes, offset: int) -> int:
        """Offset of the next ``needle`` at or after ``offset``, or -1."""
        overlap = len(needle) - 1
        while offset < self.size:
            chunk = self.read(offset, _SCAN_BYTES + overlap)
            found = chunk.find(needle)
            if found >= 0:
                return offset + found
            offset += _SCAN_BYTES
        return -1

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ByteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_newer(path: str, major: int, minor: int) -> None:
    """Raise UnsupportedVersionError if a file has a format that only a newer stashtrace reads."""
    if major > CONTAINER_MAJOR:
        raise UnsupportedVersionError(
            f"{path} has format {major}.{minor}; this stashtrace reads up to {CONTAINER_MAJOR}.x",
            hint="read it with the stashtrace that recorded it, or a newer one",
        )


def read_head(source: ByteFile) -> FileHead:
    """Read header, field table and metadata.

    Raises UnsupportedVersionError if a newer stashtrace wrote the file. Raises FormatError if this is no .stash file or
    its head is damaged.
    """
    path = source.path
    raw = source.read(0, FILE_HEADER.size)
    if not raw.startswith(FILE_MAGIC):
        raise FormatError(f"{path} is not a stashtrace file" if raw else f"{path} is empty")
    if len(raw) < FILE_HEADER.size:
        raise FormatError(f"{path} ends within its header")
    _, major, minor, header_bytes, table_bytes, metadata_bytes, data_offset, crc, flags = FILE_HEADER.unpack(raw)
    refuse_newer(path, major, minor)
    text_end = header_bytes + table_bytes + metadata_bytes
    if major < OLDEST_MAJOR or header_bytes < FILE_HEADER.size or not text_end <= data_offset < text_end + 8:
        raise FormatError(f"{path} has a damaged header")
    text = source.read(header_bytes, table_bytes + metadata_bytes)
    if len(text) < table_bytes + metadata_bytes or zlib.crc32(text) != crc:
        raise FormatError(f"{path} has a damaged header")
    try:
        records = field_table(text[:table_bytes])
        metadata = json_object(text[table_bytes:])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} has a damaged field table") from error
    metadata.pop("blanks", None)  # filling of a merged file's head
    return FileHead(major, minor, flags, records, valid_facts(metadata), data_offset)


@functools.lru_cache(maxsize=256)
def field_table(text: bytes) -> tuple[Any, ...]:
    """Entries of a field table; the same object for the same text, since the processes of a run have one in common.

    Raises ValueError, KeyError, TypeError if the text is not a field table.
    """
    records = json_object(text)["records"]
    if not isinstance(records, list):
        raise TypeError("records is not a list")
    return tuple(records)


class Scan(NamedTuple):
    """Segments of a file, how many bytes are none (between them, after the last one), and where the last one ends."""

    segments: list[Segment]
    skipped_bytes: int
    torn_bytes: int
    end_offset: int


def scan_segments(source: ByteFile, begin_offset: int) -> Scan:
    """Read the headers of all segments from an offset on; after a damaged one go on at the next sync word."""
    segments: list[Segment] = []
    skipped = torn = 0
    offset = end = begin_offset
    while offset < source.size:
        segment = _segment_at(source, offset)
        if segment is None:
            following = source.find(SYNC_BYTES, offset + 1)
            torn += (source.size if following < 0 else following) - offset
            if following < 0:
                break
            offset = following
            continue
        skipped, torn = skipped + torn, 0
        segments.append(segment)
        offset = end = segment.payload_offset + padded(segment.payload_bytes)
    return Scan(segments, skipped, torn, end)


def _segment_at(source: ByteFile, offset: int) -> Segment | None:
    raw = source.read(offset, SEGMENT_HEADER.size)
    if len(raw) < SEGMENT_HEADER.size:
        return None
    sync, record_id, codec, tid, ring_id, rows, first, size, crc, header_crc, _ = SEGMENT_HEADER.unpack(raw)
    if sync != SYNC_WORD or zlib.crc32(raw[:_CHECKED_BYTES]) != header_crc:
        return None
    if offset + SEGMENT_HEADER.size + size > source.size:
        return None
    return Segment(record_id, codec, tid, ring_id, rows, first, size, crc, offset + SEGMENT_HEADER.size)


def padded(size: int) -> int:
    """Size rounded up to the alignment of segments."""
    return (size + 7) & ~7


def pack_head(records: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], *, flags: int = 0) -> bytes:
    """Bytes of everything before the first segment."""
    table = json.dumps({"records": list(records)}, separators=(",", ":")).encode()
    facts = json.dumps(metadata, separators=(",", ":")).encode()
    text = table + facts
    offset = padded(FILE_HEADER.size + len(text))
    header = FILE_HEADER.pack(
        FILE_MAGIC,
        CONTAINER_MAJOR,
        CONTAINER_MINOR,
        FILE_HEADER.size,
        len(table),
        len(facts),
        offset,
        zlib.crc32(text),
        flags,
    )
    return (header + text).ljust(offset, b"\0")


def dropped_header(size: int, row_count: int) -> bytes:
    """Bytes of the header that stands in the place of ``size`` bytes of segments, which held this many rows."""
    payload_bytes = size - SEGMENT_HEADER.size
    fields = (SYNC_WORD, DROPPED_RECORD, Codec.RAW, 0, 0, row_count, 0, payload_bytes, 0, 0, 0)
    checked = SEGMENT_HEADER.pack(*fields)[:_CHECKED_BYTES]
    return checked + struct.pack("<II", zlib.crc32(checked), 0)


def pack_segment(
    payload: bytes, *, record_id: int, codec: int, tid: int, ring_id: int, row_count: int, first_sequence: int
) -> bytes:
    """Bytes of one segment, padding included."""
    checked = SEGMENT_HEADER.pack(
        SYNC_WORD, record_id, codec, tid, ring_id, row_count, first_sequence, len(payload), zlib.crc32(payload), 0, 0
    )[:_CHECKED_BYTES]
    header = checked + struct.pack("<II", zlib.crc32(checked), 0)
    return header + payload + bytes(padded(len(payload)) - len(payload))
