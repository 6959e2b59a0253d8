"""Source: one file of another tool, decompressed on the fly, with a report of how far it has been read.

Made by ``loading.foreign``. An importer reads it front to back, so memory does not grow with the file.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from stashtrace.errors import ImporterError
from stashtrace.files.whole_files import FREE_BYTES, open_binary, open_regular
from stashtrace.importers.import_limits import Expansion

#: Length of the beginning that ``sniff`` gets.
HEAD_BYTES = 1 << 16
#: Size of the pieces of ``chunks``, and of what is decompressed at once: JSON shrinks to about a twentieth.
CHUNK_BYTES = 1 << 20
_ZIPPED_BYTES = 1 << 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: What reading raises at damage.
READ_ERRORS = (EOFError, OSError, zlib.error)

#: Called with the compressed bytes read since the last call.
Advance = Callable[[int], None]


class _Reader(io.RawIOBase):
    """A raw stream on top of another one, which it closes."""

    def __init__(self, below: io.RawIOBase | BinaryIO) -> None:
        super().__init__()
        self._below = below

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        content = self._next(len(view))
        view[: len(content)] = content
        return len(content)

    def _next(self, most_bytes: int) -> bytes | memoryview:
        """Return the next bytes, at most this many; none at the end."""
        raise NotImplementedError

    def close(self) -> None:
        self._below.close()
        super().close()


class _Counted(_Reader):
    """A file that reports how much of it is read."""

    def __init__(self, path: Path, advance: Advance) -> None:
        super().__init__(os.fdopen(open_regular(path), "rb", buffering=0))
        self._advance = advance
        self.count = 0

    def readinto(self, buffer: object) -> int:
        count: int = self._below.readinto(buffer) or 0  # type: ignore[union-attr,arg-type]
        if count:
            self.count += count
            self._advance(count)
        return count


def _unzip(compressed: io.RawIOBase, name: str) -> Iterator[bytes]:
    """Decompress one or several gzip members; zero bytes after them are padding."""
    expansion = Expansion(name)
    member = zlib.decompressobj(wbits=31)
    begun = False
    while packed := compressed.read(_ZIPPED_BYTES):
        expansion.add(len(packed), 0)
        while packed:
            if not begun:
                if member.eof and not (packed := packed.lstrip(b"\0")).startswith(_GZIP[: len(packed)]):
                    return  # as gzip does: what follows the last member is none of it
                if not packed:
                    break
                member, begun = zlib.decompressobj(wbits=31), True
            before = member.copy()
            try:
                content = member.decompress(packed)
            except zlib.error:
                yield from _until_damage(before, packed, expansion)
                raise
            if content:
                expansion.add(0, len(content))
                yield content
            packed = member.unused_data
            begun = not member.eof
    if begun:
        raise EOFError("the compressed stream ends early")


def _until_damage(member: zlib._Decompress, packed: bytes, expansion: Expansion) -> Iterator[bytes]:
    """Decompress what stands before damage: ``decompress`` of a whole piece loses that with the rest of the piece."""
    for at in range(len(packed)):
        try:
            content = member.decompress(packed[at : at + 1])
        except zlib.error:
            return
        if content:
            expansion.add(0, len(content))
            yield content


class _Unzipped(_Reader):
    """A gzip stream in pieces. A plain ``GzipFile`` fills each request, and loses all of one that meets a cut."""

    def __init__(self, compressed: io.RawIOBase, name: str) -> None:
        super().__init__(compressed)
        self._pieces, self._piece = _unzip(compressed, name), memoryview(b"")

    def _next(self, most_bytes: int) -> memoryview:
        piece = self._piece or memoryview(next(self._pieces, b""))
        self._piece = piece[most_bytes:]
        return piece[:most_bytes]


class _Unpacked(_Reader):
    """A stream of another decompressor, whose expansion is counted."""

    def __init__(self, unpacked: BinaryIO, compressed: _Counted, name: str) -> None:
        super().__init__(unpacked)
        self._compressed, self._expansion = compressed, Expansion(name)
        self._packed_bytes = 0

    def _next(self, most_bytes: int) -> bytes:
        content: bytes = self._below.read(most_bytes) or b""
        packed_bytes = self._compressed.count - self._packed_bytes
        self._packed_bytes += packed_bytes
        self._expansion.add(packed_bytes, len(content))
        return content


def _ignore(count: int) -> None:
    """Do nothing: the default for progress."""


class Source:
    """One file.

    Parameters
    ----------
    path : path
        An existing file. Compression is recognised by its first bytes, not by its name.
    advance : callable, optional
        Called with the number of (compressed) bytes read since the last call.

    Attributes
    ----------
    cut_reason : str or None
        Why the last pass of ``chunks`` or ``lines`` ended before the end of the content; None if it did not.
    """

    def __init__(self, path: str | os.PathLike[str], advance: Advance = _ignore) -> None:
        self.path = Path(path)
        self.cut_reason: str | None = None
        self._advance = advance

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    @cached_property
    def head(self) -> bytes:
        """First 64 KiB of the content; empty if it cannot be read or decompressed."""
        try:
            with self._stream(_ignore) as stream:
                return stream.read(HEAD_BYTES)
        except (*READ_ERRORS, ImporterError):
            return self._torn_head()

    @cached_property
    def is_compressed(self) -> bool:
        """Whether the file is compressed with gzip or zstd."""
        with open_binary(self.path) as stream:
            return stream.read(len(_ZSTD)).startswith((_GZIP, _ZSTD))

    def open(self) -> BinaryIO:
        """Open the content at its beginning, buffered.

        Where a compressed stream is cut, reading raises ``EOFError`` after everything before the cut.

        Raises
        ------
        ImporterError
            If nothing installed here can decompress it.
        """
        return self._stream(self._advance)

    def passed(self, count: int) -> None:
        """Report progress for an importer that must read the file by other means than ``open``."""
        self._advance(count)

    def chunks(self) -> Iterator[bytes]:
        """Yield the content from its beginning in pieces; ``cut_reason`` shows if it ends early.

        Raises
        ------
        ImporterError
            If nothing installed here can decompress it, or it expands more than any trace.
        """
        self.cut_reason = None
        with open_binary(self.path) as raw:
            is_gzip = raw.read(len(_GZIP)) == _GZIP
        # Of gzip without the copies that a buffered stream makes.
        with _Counted(self.path, self._advance) if is_gzip else self.open() as stream:
            try:
                if isinstance(stream, _Counted):
                    yield from _unzip(stream, str(self.path))
                else:
                    yield from iter(lambda: stream.read(CHUNK_BYTES), b"")
            except READ_ERRORS as error:
                self.cut_reason = str(error)

    def lines(self, longest_bytes: int) -> Iterator[tuple[list[bytes], int]]:
        """Yield lines in batches, each with the number of lines longer than ``longest_bytes`` that were left out.

        The last line need not end. ``cut_reason`` and errors are those of :meth:`chunks`.
        """
        begun, is_skipping = b"", False
        for chunk in self.chunks():
            *lines, begun = (begun + chunk).split(b"\n")
            if is_skipping and lines:
                del lines[0]
                is_skipping = False
            too_long = sum(len(line) > longest_bytes for line in lines)
            if is_skipping or len(begun) > longest_bytes:
                too_long += not is_skipping
                begun, is_skipping = b"", True
            yield [line for line in lines if len(line) <= longest_bytes], too_long
        if begun:
            yield [begun], 0

    @contextmanager
    def plain_file(self, suffix: str) -> Iterator[Path]:
        """Give a path with the content uncompressed, for libraries that open files themselves.

        That is the file itself, or a temporary one with this suffix.
        """
        if not self.is_compressed:
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix="stashtrace-", suffix=suffix) as plain:
            with self.open() as stream:
                shutil.copyfileobj(stream, plain, 1 << 20)
            plain.flush()
            yield Path(plain.name)

    def _stream(self, advance: Advance) -> BinaryIO:
        file = _Counted(self.path, advance)
        raw = io.BufferedReader(file, 1 << 20)
        first = raw.peek(4)[:4]
        if first.startswith(_GZIP):
            return cast(BinaryIO, io.BufferedReader(_Unzipped(cast(io.RawIOBase, raw), str(self.path)), 1 << 20))
        if first == _ZSTD:
            try:
                zstandard = importlib.import_module("zstandard")
            except ImportError as error:
                raise ImporterError(
                    f"{self.path.name} is compressed with zstd", hint="pip install zstandard, or unpack it: zstd -d"
                ) from error
            unpacked = zstandard.ZstdDecompressor(max_window_size=FREE_BYTES).stream_reader(raw)
            return cast(BinaryIO, io.BufferedReader(_Unpacked(unpacked, file, str(self.path)), 1 << 20))
        return cast(BinaryIO, raw)

    def _torn_head(self) -> bytes:
        """Return what can be decompressed of a file that is cut within its head."""
        try:
            with open_binary(self.path) as stream:
                compressed = stream.read(HEAD_BYTES)
            return zlib.decompressobj(wbits=31).decompress(compressed, HEAD_BYTES)
        except READ_ERRORS:
            return b""
