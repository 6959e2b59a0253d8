"""Find the files to read in a load of other tools' traces, and the importer of each, or why there is none.

Some formats are recognised but not read. Each has a hint what to do, or what to record instead.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stashtrace.errors import ImporterError
from stashtrace.files.whole_files import open_regular
from stashtrace.importers.registry import Importer, importer_names, recognise
from stashtrace.importers.source import Source
from stashtrace.importers.unpack_archive import archive_kind
from stashtrace.text.units import bytes_text

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class UnreadFormat:
    """A format that is not read."""

    #: Name of such a file, with its article.
    name: str
    #: Why it is of no use: continues "which is not read: ".
    lacks: str
    #: What to give or to record instead; ``FILE`` stands for the path of the file.
    hint: str
    #: bytes pattern; Occurs in the first 64 KiB of such a file and of no other.
    pattern: re.Pattern[bytes]
    #: Whether the viewer can show it.
    has_times: bool = False
    #: Whether a trace may be inside or behind it, so that the trace is missing from what was given.
    is_wrapper: bool = False


FORMATS = (
    UnreadFormat(
        "a timeline of Horovod",
        "it has the phases of each tensor as one rank coordinated them, and no steps, compute or other ranks",
        "record each rank with torch.profiler or `nsys profile`, or the job with `stashtrace run -- horovodrun ...`",
        re.compile(rb'"(NEGOTIATE_(ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER)|CYCLE_START)"'),
        has_times=True,
    ),
    UnreadFormat(
        "a result of the DLIO benchmark",
        "it has the seconds that batches and epochs took, and not when",
        "set DFTRACER_ENABLE=1 for the benchmark and give the .pfw files that it writes,"
        " or record it: `stashtrace run -- mpirun ... dlio_benchmark ...`",
        re.compile(rb'"potential_caching"\s*:|"train_au_percentage"\s*:|"block1"\s*:\s*\{\s*"start"\s*:'),
    ),
    UnreadFormat(
        "a drawing of a StragglerAnalysis trace",
        "it draws the workers of a tensor-parallel group as one",
        "give the trace-*.parquet that it was drawn from, with its meta-*.yaml next to it",
        re.compile(rb'"cat"\s*:\s*"(forward|backward)-compute"'),
        has_times=True,
    ),
    UnreadFormat(
        "a trace in Chrome's format by a tool that stashtrace does not know",
        "nothing says what its events mean for a step",
        "`stashtrace view FILE` shows it as it is; traces of torch.profiler itself are read",
        re.compile(rb'"traceEvents"\s*:\s*\[\s*\{'),
        has_times=True,
    ),
)


#: Text and binary files of other kinds than JSON, by how they begin.
OTHERS = (
    UnreadFormat(
        "a log of nccl-tests",
        "it measures links between GPUs alone, without the steps of a job",
        "record the job: `stashtrace run -- CMD`; `stashtrace calibrate` measures how fast the links can be",
        re.compile(rb"(?m)^# (?:nccl-tests version|nThread \d+ nGpus \d+ minBytes |  +size +count +type )"),
    ),
    UnreadFormat(
        "a log of NCCL (NCCL_DEBUG)",
        "it has what NCCL set up, and no times of its operations",
        "record the job with `stashtrace run -- CMD`, or give the JSON lines of NCCL Inspector",
        re.compile(rb"(?m)^\S{1,255}:\d+:\d+ \[\d+\] NCCL (?:INFO|WARN|TRACE) "),
    ),
    # tsl/profiler/protobuf/xplane.proto: an XSpace has planes (1), each with an id (1) and a name (2);
    # names as in tsl/profiler/utils/xplane_schema.cc.
    UnreadFormat(
        "an XPlane profile of JAX or TensorFlow (xplane.pb)",
        "it is a private format of the profiler, and of one host",
        "record the job with `stashtrace run -- CMD` or `nsys profile`; Perfetto opens the *.trace.json.gz next to it",
        re.compile(
            rb"\A\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
            rb"\x12.(?:/host:|/device:|Task Environment)",
            re.DOTALL,
        ),
    ),
)
#: What a trace was packed into, or what came in its place; no importer is asked about such a file.
WRAPPERS = (
    UnreadFormat(
        "a Git LFS pointer",
        "it only names the trace, which Git has not fetched",
        "run `git lfs pull` in the clone that it comes from, then give the file again",
        re.compile(rb"\Aversion https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/"),
        is_wrapper=True,
    ),
    UnreadFormat(
        "a web page",
        "it was saved in place of the trace, as happens to links that ask for a login or show a file in a viewer",
        "fetch the raw file: `curl -fL -o FILE URL` with the address of its download button",
        re.compile(
            rb"\A(?:\xef\xbb\xbf)?\s*(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
        ),
        is_wrapper=True,
    ),
    UnreadFormat(
        "an error message of a storage service",
        "it was saved in place of the trace",
        "read it (`head FILE`), then fetch the file again with the rights to do so",
        re.compile(rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<Error>\s*<Code>"),
        is_wrapper=True,
    ),
    UnreadFormat(
        "compressed twice",
        "only one layer is taken off",
        "take one off: `gzip -dc FILE > trace.json.gz`",
        re.compile(rb"\A\x1f\x8b\x08"),
        is_wrapper=True,
    ),
    *(
        UnreadFormat(
            f"compressed with {name}",
            "files may be compressed with gzip or zstd",
            f"unpack it: `{program} FILE`",
            re.compile(magic),
            is_wrapper=True,
        )
        for name, program, magic in (
            ("xz", "xz -dk", rb"\A\xfd7zXZ\x00"),
            ("bzip2", "bzip2 -dk", rb"\ABZh[1-9]1AY&SY"),
            ("lz4", "lz4 -d", rb"\A\x04\x22\x4d\x18"),
            ("7-Zip", "7z x", rb"\A7z\xbc\xaf\x27\x1c"),
            ("RAR", "unrar x", rb"\ARar!\x1a\x07"),
        )
    ),
)


def unread_format(head: bytes) -> UnreadFormat | None:
    """Return the format of a file with this (decompressed) beginning, None if it is none of these."""
    known = FORMATS if head.lstrip()[:1] in (b"{", b"[") else OTHERS
    return _first_of(known, head)


def wrapper(head: bytes) -> UnreadFormat | None:
    """Return what a trace is wrapped in, or what came in its place; None if the file may be a trace itself."""
    return _first_of(WRAPPERS, head)


def _first_of(formats: Sequence[UnreadFormat], head: bytes) -> UnreadFormat | None:
    return next((known for known in formats if known.pattern.search(head[:_HEAD_BYTES])), None)


#: In a folder with more files than this, a sample is examined first.
FEW_FILES = 1000
#: Suffixes of files that are numerous in data sets and next to jobs; no tool writes traces with such a name.
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
        super().__init__(
            f"{file} is not a trace that stashtrace knows", hint=f"it reads runs of `stashtrace run` and {known()}"
        )


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
            progress(0, 0, f"file {look + 1:,} of {looks:,} that are examined, {file.name}")
        if is_trace(file):
            return
    raise ImporterError(
        f"{where} holds {len(files):,} files; none of the {max(looks, 1):,} examined is a trace",
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
    meminfo = _read("/proc/meminfo")
    available = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
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
