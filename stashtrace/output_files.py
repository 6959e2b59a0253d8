"""Files that the user asked for by name: whole or not at all, and refusals in one clear line."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stashtrace.errors import StashtraceError
from stashtrace.whole_files import whole_file


def why_not_writable(path: Path) -> str:
    """Why :func:`complete_file` will be refused, as far as can be told before; empty if nothing is known against it.

    It writes beside the target and renames, so the folder must be writable, whatever the rights of an older file.
    """
    folder = path.absolute().parent
    if path.is_dir():
        return "is a folder"
    if not folder.is_dir():
        return "no such folder"
    if path.exists() and not path.is_file():
        return "it is a device or a pipe, no file"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"


@contextmanager
def complete_file(path: Path, hint: str = "choose another file with -o") -> Iterator[Path]:
    """As :func:`stashtrace.whole_files.whole_file`, with errors that say what to do.

    Raises
    ------
    StashtraceError
        If the system refuses: no such folder, no permission, disk full.
    """
    try:
        with whole_file(path) as partial:
            yield partial
    except OSError as error:
        raise StashtraceError(f"cannot write {path}: {error.strerror}", hint=hint) from error
