"""Unpack the traces of a tar or zip archive into a folder of our own, within bounds.

``loading.temporary_archives`` makes the folder and calls ``unpack``. Only plain files under relative names are written;
an archive with anything else that could reach outside the folder (links, devices, absolute names, ``..``) is refused,
as is one that grows more than traces do. Archives inside an archive stay packed.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from stashtrace.errors import ImporterError
from stashtrace.files.whole_files import FREE_BYTES, MOST_EXPANSION, new_file, open_binary
from stashtrace.importers.import_limits import LONGEST_LINE_BYTES, OutOfBoundsError
from stashtrace.importers.source import Source
from stashtrace.text.units import bytes_text

#: Entries of an archive, and files that are unpacked from it. A job of 4,096 ranks leaves some files a rank.
MOST_ENTRIES, MOST_FILES = 1_000_000, 50_000
#: Folders inside folders.
MOST_FOLDERS = 20
#: Space left free in the folder for temporary files.
_RESERVE_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20
_TAR_BLOCK_BYTES = 512
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ENCRYPTED = 0x1
#: What tarfile, zipfile and the decompressors raise at damage.
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error),
    *(EOFError, ValueError, NotImplementedError, RuntimeError, OverflowError),
)
_MORE = "unpack it yourself where you trust it, and give the traces in it"

#: Name of an entry, whether it is wanted or not -> True if it is to be unpacked.
Wanted = Callable[[str], bool]


class HostileArchiveError(ImporterError):
    """An archive holds an entry that must not be unpacked."""

    def __init__(self, archive: Path, entry: str, what: str) -> None:
        shown = entry if len(entry) <= 80 else entry[:77] + "..."
        super().__init__(f"{archive} is not unpacked: {shown!r} in it {what}", hint=_MORE)


def archive_kind(head: bytes) -> str | None:
    """Return "tar" or "zip" for the (decompressed) beginning of an archive, None for other files."""
    if head.startswith(_ZIP):
        return "zip"
    block = head[:_TAR_BLOCK_BYTES]
    if len(block) < _TAR_BLOCK_BYTES or not block.strip(b"\0"):
        return None
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")  # its checksum is right
    except (tarfile.HeaderError, ValueError):
        return None
    return "tar"


def unpack(archive: Path, kind: str, folder: Path, is_wanted: Wanted) -> int:
    """Unpack the wanted files of an archive; return how many there are.

    ``folder``: an empty folder that only this user can enter. ``is_wanted``: asked with the name of each file. Raises
    HostileArchiveError if an entry would be outside the folder or is no plain file. Raises OutOfBoundsError if it holds
    too many entries, or unpacks to more than traces do. Raises ImporterError if it is damaged or encrypted, or there is
    no room.
    """
    writer = _Writer(archive, folder)
    try:
        (_unpack_tar if kind == "tar" else _unpack_zip)(archive, writer, is_wanted)
    except _DAMAGE as error:
        said = str(error) or type(error).__name__
        raise ImporterError(
            f"{archive} is a damaged {kind} archive: {said}", hint="copy it again from where it was written"
        ) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        name = os.path.relpath(error.filename, folder).partition("/")[0]
        raise ImporterError(
            f"{archive} is a damaged {kind} archive: {name!r} in it is a file and a folder", hint=_MORE
        ) from error
    except OSError as error:
        raise ImporterError(
            f"{archive} cannot be unpacked: {error.strerror or error}",
            hint=f"it is unpacked into {folder.parent}; TMPDIR=/another/place chooses another",
        ) from error
    return writer.files_count


class _Writer:
    """Checks the entries of an archive and writes its files."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.files_count = self._entries_count = self._written_bytes = 0
        self._most_bytes = max(FREE_BYTES, MOST_EXPANSION * archive.stat().st_size)
        free = os.statvfs(folder)
        self._free_bytes = free.f_bavail * free.f_frsize - _RESERVE_BYTES

    def check(self, name: str, kind: str) -> str | None:
        """Count an entry; return the name of the file to write, None for a folder.

        ``name``: as the archive spells it. ``kind``: anything else is what the error says of it.
        """
        self._entries_count += 1
        if self._entries_count > MOST_ENTRIES:
            raise OutOfBoundsError(str(self.archive), f"holds more than {MOST_ENTRIES:,} entries")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/"):
            raise HostileArchiveError(self.archive, name, "has an absolute name")
        if ".." in parts:
            raise HostileArchiveError(self.archive, name, "lies outside of it")
        if "\0" in name:
            raise HostileArchiveError(self.archive, name, "has no valid name")
        if kind not in ("file", "folder"):
            raise HostileArchiveError(self.archive, name, kind)
        if len(parts) > MOST_FOLDERS:
            raise OutOfBoundsError(str(self.archive), f"has more than {MOST_FOLDERS} folders inside folders")
        return "/".join(parts) if kind == "file" and parts else None

    def write(self, name: str, content: IO[bytes]) -> None:
        """Write a file under a name that :meth:`check` returned; a file of the same name is replaced, as tar does."""
        self.files_count += 1
        if self.files_count > MOST_FILES:
            raise OutOfBoundsError(str(self.archive), f"holds more than {MOST_FILES:,} files that may be traces")
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.unlink(missing_ok=True)
        with os.fdopen(new_file(target), "wb") as file:
            while piece := content.read(_PIECE_BYTES):
                self._written_bytes += len(piece)
                self._check_size()
                file.write(piece)

    def _check_size(self) -> None:
        if self._written_bytes > self._most_bytes:
            text = f"unpacks to more than {bytes_text(self._most_bytes)}, which no archive of traces of its size does"
            raise OutOfBoundsError(str(self.archive), text)
        if self._written_bytes > self._free_bytes:
            raise ImporterError(
                f"{self.archive} does not fit into {self.folder.parent} unpacked:"
                f" {bytes_text(max(self._free_bytes, 0))} are free",
                hint="TMPDIR=/another/place chooses another folder",
            )


def _unpack_zip(archive: Path, writer: _Writer, is_wanted: Wanted) -> None:
    with zipfile.ZipFile(archive) as opened:
        if any(name.endswith("/data.pkl") for name in opened.namelist()):
            raise ImporterError(f"{archive} is a file of torch.save, with tensors and no trace", hint=_MORE)
        for entry in opened.infolist():
            name = writer.check(entry.filename, _kind_in_zip(entry))
            if name is None or not is_wanted(name):
                continue
            if entry.flag_bits & _ENCRYPTED:
                raise ImporterError(f"{archive} is encrypted", hint="unpack it with its password, and give the traces")
            with opened.open(entry) as content:
                writer.write(name, content)


def _kind_in_zip(entry: zipfile.ZipInfo) -> str:
    mode = entry.external_attr >> 16  # of Unix; 0 where another system wrote it
    if stat.S_ISLNK(mode):
        return "is a link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is no plain file"
    return "folder" if entry.is_dir() else "file"


def _unpack_tar(archive: Path, writer: _Writer, is_wanted: Wanted) -> None:
    for opened, entry in _tar_entries(archive):
        name = writer.check(entry.name, _kind_in_tar(entry))
        if name is not None and is_wanted(name):
            content = opened.extractfile(entry)
            assert content is not None, "a plain file has content"
            writer.write(name, content)


def _tar_entries(archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    source = Source(archive)
    with source.open() if source.is_compressed else open_binary(archive) as stream:
        forward = cast(BinaryIO, _Forward(stream, can_seek=not source.is_compressed))
        with tarfile.open(fileobj=forward, mode="r:") as opened:
            while (entry := opened.next()) is not None:
                yield opened, entry
                opened.members.clear()  # type: ignore[attr-defined]  # else a long archive would fill the memory


def _kind_in_tar(entry: tarfile.TarInfo) -> str:
    if entry.issym() or entry.islnk():
        return "is a link"
    if entry.isdir():
        return "folder"
    return "file" if entry.isfile() else "is no plain file"


class _Forward(io.RawIOBase):
    """A stream that ``tarfile`` reads front to back: it skips by reading, and no header makes it read much at once.

    ``can_seek``: whether the stream can skip by itself.
    """

    def __init__(self, stream: BinaryIO, *, can_seek: bool) -> None:
        super().__init__()
        self._stream, self._can_seek, self._at = stream, can_seek, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST_LINE_BYTES:  # headers say how long they are
            raise ValueError("a header is larger than any")
        content = self._stream.read(size)
        self._at += len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset < self._at:
            raise ValueError("entries overlap")
        if self._can_seek:
            self._at = self._stream.seek(offset)
        while self._at < offset:
            if not self.read(min(offset - self._at, _PIECE_BYTES)):
                break
        return self._at
