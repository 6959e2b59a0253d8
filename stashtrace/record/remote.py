"""Run directories behind a URL, by fsspec: every kind that it or a plug-in of it knows (s3, gs, http, memory, file).

fsspec comes with the extra ``stashtrace[remote]`` and is imported when a URL is used. A remote directory is fetched or
delivered file by file; nothing is read in place.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, FormatError, OutputError, StashtraceError, UsageError
from stashtrace.record.directory import WINDOWS_FOLDER

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ACCESS_HINT = "check the address and the access rights"
#: Called with (files done, files in all).
Progress = Callable[[int, int], None]


def is_url(text: str) -> bool:
    """Return True for a URL, which fsspec opens; False for the path of a file or directory."""
    return _URL.match(text) is not None


def fetch(url: str, directory: Path, *, wanted: Callable[[str], bool], progress: Progress | None = None) -> list[Path]:
    """Copy the wanted files of a remote directory and of the folders in it.

    ``wanted``: called with the name of each file; returns whether to copy it. Returns the paths of the copies. Raises
    UsageError as ``check_url`` does. Raises FormatError if no file is wanted, or the directory cannot be read.
    """
    files, root = _open(url)
    with _raised_as(FormatError, f"cannot read {url}"):
        listed = _listing(files, root, wanted)
        for number, (remote, below) in enumerate(listed):
            local = directory / below
            local.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(remote, str(local))
            if progress is not None:
                progress(number + 1, len(listed))
    if not listed:
        raise FormatError(f"{url} holds no trace", hint="give the URL of a run directory; it holds .stash files")
    return [directory / below for _, below in listed]


def deliver(directory: Path, url: str) -> int:
    """Copy all files of a local directory, and of its windows, to a remote one; return how many.

    Raises UsageError as ``check_url`` does. Raises CaptureError if the remote directory cannot be written.
    """
    files, root = _open(url)
    windows = (directory / WINDOWS_FOLDER).glob("*/*")
    local = sorted(path for path in (*directory.iterdir(), *windows) if path.is_file())
    kept = f"the records are kept in {directory}; {_ACCESS_HINT}"
    with _raised_as(CaptureError, f"cannot write to {url}", kept):
        files.makedirs(root, exist_ok=True)
        for path in local:
            target = posixpath.join(root, path.relative_to(directory).as_posix())
            if path.parent != directory:
                files.makedirs(posixpath.dirname(target), exist_ok=True)
            files.put_file(str(path), target)
    return len(local)


def read_file(url: str) -> bytes | None:
    """Return the content of one remote file; None if there is no such file.

    Raises UsageError as ``check_url`` does. Raises FormatError if it cannot be read.
    """
    files, path = _open(url)
    try:
        with _raised_as(FormatError, f"cannot read {url}", passes=FileNotFoundError):
            content: bytes = files.cat_file(path)
    except FileNotFoundError:
        return None
    return content


def write_file(url: str, content: bytes) -> None:
    """Write one remote file, and the folders above it where the file system has any.

    Raises UsageError as ``check_url`` does. Raises CaptureError if it cannot be written.
    """
    files, path = _open(url)
    with _raised_as(CaptureError, f"cannot write {url}"):
        files.makedirs(posixpath.dirname(path), exist_ok=True)
        files.pipe_file(path, content)


def list_files(url: str, ending: str) -> list[str]:
    """Return the names of the files in a remote directory that end so, sorted; none if there is no such directory.

    Raises UsageError as ``check_url`` does. Raises FormatError if the directory cannot be read.
    """
    files, root = _open(url)
    try:
        with _raised_as(FormatError, f"cannot read {url}", passes=FileNotFoundError):
            listed = files.ls(root, detail=True)
    except FileNotFoundError:
        return []
    names = (posixpath.basename(entry["name"]) for entry in listed if entry["type"] == "file")
    return sorted(name for name in names if name.endswith(ending))


def read_files(url: str, names: Sequence[str]) -> dict[str, bytes | str]:
    """Return the content of files of a remote directory, by name; the reason, as a text, of one that cannot be read.

    Plug-ins that can do so read many at a time. Raises UsageError as ``list_files`` does.
    """
    files, root = _open(url)
    paths = {posixpath.join(root, name): name for name in names}
    with _raised_as(FormatError, f"cannot read {url}"):
        found = files.cat(list(paths), on_error="return") if paths else {}
    if not isinstance(found, dict):  # of a single one, some plug-ins return the content alone
        found = dict.fromkeys(paths, found)
    contents = {posixpath.basename(path): content for path, content in found.items()}
    return {name: c if isinstance(c, bytes) else _first_line(c) for name, c in contents.items()}


def claim_remote_file(url: str, name: str, content: bytes) -> bool:
    """Write one file into a remote directory unless it is there; return whether it was written.

    It is written under another name and renamed, so nobody reads a part of it. Raises UsageError if fsspec, or its
    plug-in for this kind of URL, is not installed. Raises OutputError if it cannot be written.
    """
    files, root = _open(url)
    target = posixpath.join(root, name)
    partial = f"{target}.part-{secrets.token_hex(8)}"
    with _raised_as(OutputError, f"cannot write to {url}"):
        if files.exists(target):
            return False
        files.makedirs(root, exist_ok=True)
        files.pipe_file(partial, content)
        files.mv(partial, target)
    return True


def local_path(url: str) -> Path | None:
    """Return the path behind a URL of local files; None for one of another kind.

    Raises UsageError as ``check_url`` does.
    """
    files, root = _open(url)
    protocol = files.protocol if isinstance(files.protocol, (tuple, list)) else (files.protocol,)
    return Path(root) if "file" in protocol else None


def check_url(url: str) -> None:
    """Check that fsspec can open a URL, before a job is started whose run is to go there.

    Raises UsageError if fsspec, or its plug-in for this kind of URL, is not installed.
    """
    _open(url)


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{url} needs the package fsspec", hint="pip install 'stashtrace[remote]'") from error
    try:
        with _raised_as(UsageError, f"{url} is no URL that fsspec can open", passes=ImportError):
            files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(
            f"{url} needs a plug-in of fsspec: {_first_line(error)}", hint="install it in the environment of fsspec"
        ) from error
    return files, root


@contextlib.contextmanager
def _raised_as(
    kind: type[StashtraceError], problem: str, hint: str = _ACCESS_HINT, passes: type[Exception] | tuple[()] = ()
) -> Iterator[None]:
    """Raise whatever fails inside as an error of ours, since each plug-in has its own; ``passes`` goes through."""
    try:
        yield
    except passes:
        raise
    except Exception as error:
        raise kind(f"{problem}: {_first_line(error)}", hint=hint) from error


def _listing(files: Any, root: str, wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Return (remote path, path below the directory) of the wanted files, here and one level below."""
    listed, folders = [], []
    for entry in files.ls(root, detail=True):
        name = posixpath.basename(entry["name"].rstrip("/"))
        if name in ("", ".", ".."):
            continue
        if entry["type"] == "file" and wanted(name):
            listed.append((entry["name"], name))
        elif entry["type"] == "directory" or entry["name"].endswith("/"):
            folders.append((entry["name"], name))
    for folder, name in folders:
        if not folder.strip("/").startswith(root.strip("/") + "/"):
            continue  # a page of links leads to other directories, too
        for entry in files.ls(folder, detail=True):
            file = posixpath.basename(entry["name"].rstrip("/"))
            if entry["type"] == "file" and wanted(file):
                listed.append((entry["name"], posixpath.join(name, file)))
    return sorted(listed)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
