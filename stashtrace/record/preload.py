"""Find a path under which a library can be preloaded: LD_PRELOAD is split at blanks and colons, without quoting."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from stashtrace.errors import BUILD_HINT, CaptureError

_SEPARATORS = frozenset(" :")


def preload_path(library: str | os.PathLike[str]) -> str:
    """Return a path of the library that LD_PRELOAD can name.

    A library in a folder with a blank or a colon gets a link in a folder of the user's own, in the cache or else among
    temporary files. The link stays, since processes of the job may start others after the command has ended.

    Raises
    ------
    CaptureError
        If the library is missing, or no folder without a blank can be used.
    """
    path = Path(library).absolute()
    if not path.is_file():
        raise CaptureError(f"{path.name} is not in {path.parent}", hint=BUILD_HINT)
    if not _SEPARATORS & set(str(path)):
        return str(path)
    folder_name = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in (
        Path(cache) / "stashtrace" / folder_name,
        Path(tempfile.gettempdir()) / f"stashtrace-{os.getuid()}-{folder_name}",
    ):
        if folder.is_absolute() and not _SEPARATORS & set(str(folder)) and _is_own_folder(folder):
            link = folder / path.name
            if _links_to(link, path):
                return str(link)
    raise CaptureError(
        f"the path {path} holds a colon or a blank, which LD_PRELOAD cannot name, and no link to it could be made",
        hint="set XDG_CACHE_HOME to a folder that can be written, or install stashtrace into a folder without blanks",
    )


def _is_own_folder(folder: Path) -> bool:
    """Make the folder; True if nobody else can put a library there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _links_to(link: Path, path: Path) -> bool:
    """Make the link, or replace one that leads elsewhere; another process may do the same."""
    try:
        if os.path.lexists(link) and os.readlink(link) == str(path):
            return True
        new = link.with_name(f".{link.name}-{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(path)
        new.replace(link)
    except OSError:
        return False
    return True
