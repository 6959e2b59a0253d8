"""Find the files to read in a load of other tools' traces, and the importer of each."""

from __future__ import annotations

import os
import re
import shlex
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stashtrace.errors import ImporterError
from stashtrace.importers.registry import Importer, importer_names, recognise
from stashtrace.importers.source import Source
from stashtrace.importers.unpack_archive import archive_kind
from stashtrace.importers.unread_formats import UnreadFormat, unread_format, wrapper
from stashtrace.units import bytes_text
from stashtrace.whole_files import open_regular

#: In a folder with more files than this, a sample is examined first.
FEW_FILES = 1000
#: Suffixes of files that are numerous in data sets and beside jobs; no tool writes traces with such a name.
NEVER_TRACES = frozenset(
    (
        *(".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".mp4", ".avi", ".mkv", ".wav", ".flac"),
        *(".mp3", ".ogg", ".npy", ".npz", ".h5", ".hdf5", ".tfrecord", ".tar", ".safetensors", ".ckpt", ".pth"),
        *(".pyc", ".py", ".so", ".o", ".c", ".cpp", ".h", ".cu", ".md", ".html", ".css", ".js"),
    )
)


class UnknownFileError(ImporterError):
    """No importer recognises a file."""

    def __init__(self, file: Path) -> None:
        super().__init__(f"{file} is not a trace that stashtrace knows", hint=f"it reads its own runs and {known()}")


class RefusedFileError(ImporterError):
    """The format of a file is known, but cannot be read."""

    def __init__(self, file: Path, known_as: UnreadFormat) -> None:
        super().__init__(
            f"{file} is {known_as.name}, which is not read: {known_as.lacks}",
            hint=known_as.hint.replace("FILE", shlex.quote(str(file))),
        )
        self.has_times = known_as.has_times
        self.is_wrapper = known_as.is_wrapper


class ArchiveAmongFilesError(ImporterError):
    """An archive lies in a folder, or in another archive, and is not unpacked there."""

    def __init__(self, file: Path, kind: str) -> None:
        super().__init__(
            f"{file} is a {kind} archive, which is unpacked only where it is given by its name",
            hint=f"give it itself: `stashtrace summary {shlex.quote(str(file))}`",
        )


def known() -> str:
    """Return the names of the formats, for a hint."""
    return ", ".join(importer_names())


def files_of(paths: Sequence[str]) -> Iterator[Path]:
    """Yield every file under the paths, by name; hidden files are left out, links to folders are not followed.

    A folder below a path that cannot be listed is yielded itself, in place of its files.
    """
    for path in paths:
        if not os.path.isdir(path):
            yield Path(path)
            continue
        closed: list[OSError] = []
        for folder, folders, names in os.walk(path, onerror=closed.append):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (Path(error.filename) for error in closed)


def require_trace_among(
    files: Sequence[Path], where: str, progress: Callable[[int, int, str], None] | None = None
) -> None:
    """Raise if an evenly spaced sample of many files holds no trace; a few files are not checked.

    ``files``: as :func:`files_of` gives them. ``where``: folder or paths that hold the files, for the message.
    ``progress``: called with (0, 0, progress as text) before each file is examined; 0 bytes are read. Raises
    ImporterError if no importer reads any of the examined files.
    """
    if len(files) <= FEW_FILES:
        return
    likely = [file for file in files if file.suffix.lower() not in NEVER_TRACES]
    looks = min(len(likely), FEW_FILES)
    for look in range(looks):
        file = likely[look * len(likely) // looks]
        if progress is not None:
            progress(0, 0, f"file {look + 1:,} of {looks:,} that are looked at, {file.name}")
        if is_trace(file):
            return
    raise ImporterError(
        f"{where} holds {len(files):,} files; none of the {max(looks, 1):,} looked at is a trace",
        hint="give the traces themselves, or the folder that holds them alone",
    )


def size_of(file: Path) -> int:
    """Return the size of a file in bytes; 0 if it is unknown."""
    try:
        status = file.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def is_trace(file: Path) -> bool:
    """Return True for files that can be read and that an importer recognises."""
    try:
        importer_of(Source(file))
    except ImporterError:
        return False
    return True


def importer_of(source: Source) -> tuple[str, Importer]:
    """Return the name of the format of a file, and its importer.

    Raises UnknownFileError if no importer recognises it. Raises RefusedFileError if its format is known, but cannot be
    read. Raises ArchiveAmongFilesError if it is an archive. Raises ImporterError if it cannot be read.
    """
    _require_readable(source.path)
    wrapped_in = wrapper(source.head)
    if wrapped_in is not None:
        raise RefusedFileError(source.path, wrapped_in)
    kind = archive_kind(source.head)
    if kind is not None:
        raise ArchiveAmongFilesError(source.path, kind)
    recognised = recognise(source)
    if recognised is not None:
        return recognised
    if source.size_bytes and not source.head:
        source.open().close()  # raises where the decompressor is not installed
        if _is_empty_inside(source):
            raise ImporterError(f"{source.path} holds nothing, compressed", hint="record again")
        raise ImporterError(
            f"{source.path} cannot be decompressed from its beginning", hint="copy it again from where it was written"
        )
    known_as = unread_format(source.head)
    raise UnknownFileError(source.path) if known_as is None else RefusedFileError(source.path, known_as)


def _is_empty_inside(source: Source) -> bool:
    """Return True if a compressed file can be decompressed and is empty."""
    try:
        with source.open() as stream:
            return not stream.read(1)
    except (OSError, EOFError, zlib.error, ImporterError):
        return False


def _require_readable(file: Path) -> None:
    """Raise ImporterError if a file cannot be read, before its contents are examined.

    Pipes and the like are not opened: opening one would block until another process writes to it.
    """
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            os.listdir(file)
            return
        if not stat.S_ISREG(mode):
            raise ImporterError(f"{file} is not a regular file", hint="give the files that the other tool wrote")
        if not file.stat().st_size:
            raise ImporterError(f"{file} is empty", hint="the job may have ended before it was written: record again")
        os.close(open_regular(file))
    except OSError as error:
        hint = f"see who may: ls -ld {file}" if isinstance(error, PermissionError) else None
        raise ImporterError(f"{file} cannot be read: {error.strerror or error}", hint=hint) from error


# Is there memory for more of a file? Checked while it is read, so that a load ends before the kernel kills it.
#

#: Bytes read between two checks.
_LOOK_BYTES = 32 << 20
#: Memory left to other programs.
_RESERVE_BYTES = 128 << 20
#: Tables are joined after reading; during that, this part of them exists twice.
_JOIN_RATIO = 0.5
#: Files with the limit and the use of memory of a control group: version 2, version 1.
_GROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
HINT = "give fewer files or ranks at a time, or use a machine with more memory"


class MemoryLimit:
    """Memory that is available to a load."""

    def __init__(self) -> None:
        self._held_before = held_bytes()
        self._since_look = 0

    def check(self, count: int, file: str) -> None:
        """Check the memory again if enough was read since the last check.

        Raises ImporterError if the rows kept from the files would not leave memory to join them.
        """
        self._since_look += count
        if self._since_look < _LOOK_BYTES:
            return
        self._since_look = 0
        kept, free = max(held_bytes() - self._held_before, 0), free_bytes()
        if free is not None and free < max(_RESERVE_BYTES, _JOIN_RATIO * kept):
            raise ImporterError(
                f"{file} does not fit into memory: {bytes_text(kept)} are kept so far, {bytes_text(free)} are free",
                hint=HINT,
            )


def held_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def free_bytes() -> int | None:
    """Return the free memory in bytes, of the machine or of the container if that is less; None if unknown."""
    told = _read("/proc/meminfo")
    available = re.search(r"^MemAvailable:\s+(\d+) kB", told, re.MULTILINE)
    free = [int(available[1]) << 10] if available else []
    for most, used, details in _GROUP_FILES:
        limits = [_read(path).strip() for path in (most, used)]
        if all(text.isdigit() for text in limits):
            # The kernel frees inactive pages of files before it kills a process.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", _read(details), re.MULTILINE)
            free.append(max(int(limits[0]) - int(limits[1]) + (int(cached[1]) if cached else 0), 0))
    return min(free, default=None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
