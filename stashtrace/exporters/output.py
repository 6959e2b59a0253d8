"""Files that appear under their name only when they are complete. Used by every exporter.

The file is written beside its target under a name that nobody can guess and that must be new, so a link that somebody
put there is never followed, and nobody else reads it before it has its final mode. What a killed process left behind is
removed by the next one that writes the same target.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stashtrace.errors import StashtraceError

_LEFT = re.compile(r"\.part(\d+)-[0-9a-f]{16}")


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """Path to write to; it becomes ``path`` at the end, or vanishes on an error.

    It is readable by its owner alone while it is written. Then it has the mode of the file that it replaces, or the one
    that the user's umask gives a new file.

    Raises
    ------
    StashtraceError
        If the system refuses: no such folder, no permission, disk full.
    """
    partial = path.with_name(f"{path.name}.part{os.getpid()}-{secrets.token_hex(8)}")
    try:
        remove_left(path)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        yield partial
        partial.chmod(_final_mode(path))
        partial.replace(path)
    except OSError as error:
        raise StashtraceError(f"cannot write {path}: {error.strerror}", hint="choose another file with -o") from error
    finally:
        partial.unlink(missing_ok=True)


def remove_left(path: Path) -> None:
    """Remove what processes of ours that are dead left half written of this file."""
    with contextlib.suppress(OSError):  # a folder that cannot be listed is told by who writes into it
        for name in os.listdir(path.parent):
            found = _LEFT.fullmatch(name.removeprefix(path.name)) if name.startswith(path.name) else None
            if found is None or _is_alive(int(found[1])):
                continue
            left = path.parent / name
            known = left.lstat()
            if stat.S_ISREG(known.st_mode) and known.st_uid == os.geteuid():
                left.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _final_mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o666 & ~mask
