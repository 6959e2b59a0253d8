"""Source: one file of another tool, decompressed on the fly, telling how far it has been read.

Made by ``loading.foreign``; an importer reads ``open()`` front to back, so that memory does not grow with the file.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import FREE_BYTES, Expansion

#: What ``sniff`` may look at.
HEAD_BYTES = 1 << 16
#: Pieces of ``chunks``, and what is decompressed at once: JSON shrinks to about a twentieth.
CHUNK_BYTES = 1 << 20
_ZIPPED_BYTES = 1 << 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

#: Called with the compressed bytes read since the last call.
Advance = Callable[[int], None]


class _Counted(io.RawIOBase):
    """A file that reports what is read of it."""

    def __init__(self, path: Path, advance: Advance) -> None:
        super().__init__()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._advance = advance
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        count = self._file.readinto(buffer)  # type: ignore[arg-type]
        if count:
            self.count += count
            self._advance(count)
        return count or 0

    def close(self) -> None:
        self._file.close()
        super().close()


def _unzipped(compressed: io.RawIOBase, name: str) -> Iterator[bytes]:
    """Content of one or several gzip members; zero bytes after them are padding."""
    expansion = Expansion(name)
    member = zlib.decompressobj(wbits=31)
    begun = False
    while given := compressed.read(_ZIPPED_BYTES):
        expansion.add(len(given), 0)
        while given:
            if not begun:
                if member.eof and not (given := given.lstrip(b"\0")).startswith(_GZIP[: len(given)]):
                    return  # as gzip does: what follows the last member is none of it
                if not given:
                    break
                member, begun = zlib.decompressobj(wbits=31), True
            if content := member.decompress(given):
                expansion.add(0, len(content))
                yield content
            given = member.unused_data
            begun = not member.eof
    if begun:
        raise EOFError("the compressed stream ends early")


class _Unzipped(io.RawIOBase):
    """A gzip stream in pieces: a plain ``GzipFile`` fills each request, and loses all of one that meets a cut."""

    def __init__(self, compressed: io.RawIOBase, name: str) -> None:
        super().__init__()
        self._compressed, self._pieces, self._piece = compressed, _unzipped(compressed, name), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if not self._piece:
            self._piece = memoryview(next(self._pieces, b""))
        count = min(len(view), len(self._piece))
        view[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def close(self) -> None:
        self._compressed.close()
        super().close()


class _Unpacked(io.RawIOBase):
    """A stream of another decompressor, whose expansion is counted."""

    def __init__(self, unpacked: BinaryIO, compressed: _Counted, name: str) -> None:
        super().__init__()
        self._unpacked, self._compressed, self._expansion = unpacked, compressed, Expansion(name)
        self._packed = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        content = self._unpacked.read(len(view))
        view[: len(content)] = content
        packed = self._compressed.count - self._packed
        self._packed += packed
        self._expansion.add(packed, len(content))
        return len(content)

    def close(self) -> None:
        self._unpacked.close()
        super().close()


def _ignore(count: int) -> None:
    """Nobody watches."""


class Source:
    """One file.

    Parameters
    ----------
    path : path
        An existing file; ``.gz`` and ``.zst`` are told by their first bytes, not by the name.
    advance : callable, optional
        Called with the number of (compressed) bytes read since the last call.
    """

    def __init__(self, path: str | os.PathLike[str], advance: Advance = _ignore) -> None:
        self.path = Path(path)
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
        except (OSError, EOFError, zlib.error, ImporterError):
            return self._torn_head()

    def open(self) -> BinaryIO:
        """The content from its beginning, buffered.

        A compressed stream that is cut raises ``EOFError`` at its end, after everything before the cut was given.

        Raises
        ------
        ImporterError
            If it is compressed in a way that nothing installed here can undo.
        """
        return self._stream(self._advance)

    def passed(self, count: int) -> None:
        """Report progress for an importer that must read the file by other means than ``open``."""
        self._advance(count)

    def chunks(self) -> Iterator[bytes]:
        """The content from its beginning in pieces, for readers that take it whole; gzip without a copy in between.

        Raises
        ------
        EOFError
            At the end of a compressed stream that is cut, after everything before the cut was given.
        ImporterError
            As :meth:`open`.
        """
        with self.path.open("rb") as raw:
            zipped = raw.read(len(_GZIP)) == _GZIP
        if zipped:
            with _Counted(self.path, self._advance) as compressed:
                yield from _unzipped(compressed, str(self.path))
            return
        with self.open() as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

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
        """What can be had of the beginning of a compressed file that is shorter than a head and cut."""
        try:
            with self.path.open("rb") as stream:
                compressed = stream.read(HEAD_BYTES)
            return zlib.decompressobj(wbits=31).decompress(compressed, HEAD_BYTES)
        except (OSError, zlib.error):
            return b""
