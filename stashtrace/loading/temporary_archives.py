"""Unpack an archive of traces once for each process, into a temporary folder that is gone when Python ends.

Whatever takes a path calls ``unpacked`` first, so that archives go where folders do. Messages name the archive in
place of the folder: ``named`` puts its name back.
"""

from __future__ import annotations

import atexit
import os
import shlex
import stat
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stashtrace.errors import ImporterError
from stashtrace.files.whole_files import folder_next_to
from stashtrace.importers.source import Source
from stashtrace.importers.unpack_archive import archive_kind, unpack
from stashtrace.loading.foreign_files import NEVER_TRACES

#: (path of the archive, its device, inode, size and time of change) -> what is in it, and the folder that holds that.
_KNOWN: dict[tuple[str, tuple[int, ...]], tuple[Path, Path]] = {}
_FOLDERS = ExitStack()
atexit.register(_FOLDERS.close)


def unpacked(path: str | os.PathLike[str]) -> str:
    """Return the folder with the traces of an archive; any other path as it is.

    Where everything in the archive lies below one folder, that one is returned.

    Raises ImporterError if the archive is hostile, damaged, too large, or holds no file that may be a trace.
    """
    archive = Path(path)
    kind = kind_of(archive)
    if kind is None:
        return os.fspath(path)
    status = archive.stat()
    key = (str(archive), (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    if key not in _KNOWN:
        with ExitStack() as stack:
            root = Path(tempfile.gettempdir(), f"stashtrace-unpacked-{os.geteuid()}")
            folder = stack.enter_context(folder_next_to(root))
            if not unpack(archive, kind, folder, _may_be_trace):
                listing = f"{'tar -tf' if kind == 'tar' else 'unzip -l'} {shlex.quote(str(archive))}"
                raise ImporterError(
                    f"{archive} is a {kind} archive without a trace", hint=f"`{listing}` shows what is in it"
                )
            _FOLDERS.push(stack.pop_all())
        _KNOWN[key] = _below(folder), folder
    return str(_KNOWN[key][0])


def unpacked_paths(paths: Sequence[str]) -> tuple[list[str], str]:
    """Return the paths with folders in place of archives, and all of them as messages name them."""
    folders = [unpacked(path) for path in paths]
    return folders, named(os.pathsep.join(folders))


def kind_of(path: Path) -> str | None:
    """Return "tar" or "zip" for archives, None for anything else and for what cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        return archive_kind(Source(path).head)
    except OSError:
        return None


def named(text: str) -> str:
    """Return a text with the names of archives in place of the folders into which they were unpacked."""
    for (archive, _), (inside, folder) in _KNOWN.items():
        text = text.replace(str(inside), archive).replace(str(folder), archive)
    return text


def _may_be_trace(name: str) -> bool:
    """Return False for hidden files, what systems add to archives, and files that no tool writes traces to."""
    *folders, last = name.split("/")
    hidden = any(part.startswith(".") for part in (*folders, last)) or "__MACOSX" in folders
    return not hidden and Path(last).suffix.lower() not in NEVER_TRACES


def _below(folder: Path) -> Path:
    """Return the innermost folder that holds everything."""
    while True:
        entries = list(folder.iterdir())
        if len(entries) != 1 or not entries[0].is_dir():
            return folder
        folder = entries[0]
