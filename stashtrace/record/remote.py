"""Run directories behind a URL, by fsspec: whatever it or a plug-in of it knows (s3, gs, http, memory, file).

The package is an extra, ``stashtrace[remote]``, and imported when a URL is used, not before. A remote directory is
fetched or delivered file by file; nothing is read in place.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, FormatError, UsageError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Called with (files done, files in all).
Progress = Callable[[int, int], None]


def is_url(text: str) -> bool:
    """Whether a path is one for fsspec."""
    return _URL.match(text) is not None


def fetch(url: str, directory: Path, *, wanted: Callable[[str], bool], progress: Progress | None = None) -> list[Path]:
    """Copy the files of a remote directory whose names are wanted, with their folders one level deep.

    Parameters
    ----------
    url : str
        The remote directory.
    directory : Path
        Where to put them; made if missing.
    wanted : callable
        Told the name of each file.
    progress : callable, optional
        See :data:`Progress`.

    Returns
    -------
    list of Path
        What was copied.

    Raises
    ------
    UsageError
        If fsspec, or its plug-in for this kind of URL, is not installed.
    FormatError
        If there is nothing, or it cannot be read.
    """
    files, root = _open(url)
    try:
        found = _listing(files, root, wanted)
        for number, (remote, below) in enumerate(found):
            local = directory / below
            local.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(remote, str(local))
            if progress is not None:
                progress(number + 1, len(found))
    except Exception as error:  # each plug-in has errors of its own
        raise FormatError(f"cannot read {url}: {_said(error)}", hint=_ACCESS_HINT) from error
    if not found:
        raise FormatError(f"{url} holds no trace", hint="give the URL of a run directory; it holds .stash files")
    return [directory / below for _, below in found]


def deliver(directory: Path, url: str, *, progress: Progress | None = None) -> int:
    """Copy all files of a local directory to a remote one; the number of files.

    Raises
    ------
    UsageError
        If fsspec, or its plug-in for this kind of URL, is not installed.
    CaptureError
        If it cannot be written.
    """
    files, root = _open(url)
    local = sorted(path for path in directory.iterdir() if path.is_file())
    try:
        files.makedirs(root, exist_ok=True)
        for number, path in enumerate(local):
            files.put_file(str(path), posixpath.join(root, path.name))
            if progress is not None:
                progress(number + 1, len(local))
    except Exception as error:  # each plug-in has errors of its own
        raise CaptureError(
            f"cannot write to {url}: {_said(error)}", hint=f"the records are kept in {directory}; {_ACCESS_HINT}"
        ) from error
    return len(local)


def check(url: str) -> None:
    """Find out that a URL can be spoken to at all, before a job is started for it.

    Raises
    ------
    UsageError
        If fsspec, or its plug-in for this kind of URL, is not installed.
    """
    _open(url)


_ACCESS_HINT = "check the address and the access rights"


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{url} needs the package fsspec", hint="pip install 'stashtrace[remote]'") from error
    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(f"{url} needs a plug-in of fsspec: {_said(error)}", hint="install it beside fsspec") from error
    except Exception as error:  # each plug-in has errors of its own
        raise UsageError(f"{url} is no URL that fsspec can open: {_said(error)}", hint=_ACCESS_HINT) from error
    return files, root


def _listing(files: Any, root: str, wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
    """(remote path, path below the directory) of wanted files, here and one level below."""
    found, folders = [], []
    for entry in files.ls(root, detail=True):
        name = posixpath.basename(entry["name"].rstrip("/"))
        if name in ("", ".", ".."):
            continue
        if entry["type"] == "file" and wanted(name):
            found.append((entry["name"], name))
        elif entry["type"] == "directory" or entry["name"].endswith("/"):
            folders.append((entry["name"], name))
    for folder, name in folders:
        if not entry_is_below(folder, root):
            continue
        for entry in files.ls(folder, detail=True):
            file = posixpath.basename(entry["name"].rstrip("/"))
            if entry["type"] == "file" and wanted(file):
                found.append((entry["name"], posixpath.join(name, file)))
    return sorted(found)


def entry_is_below(entry: str, root: str) -> bool:
    """Whether a listed folder lies in the one listed; a page of links also leads to others."""
    return entry.strip("/").startswith(root.strip("/") + "/")


def _said(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
