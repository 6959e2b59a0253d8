"""Files that the user asked for by name: whole or not at all, and refusals in one clear line."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stashtrace.errors import StashtraceError
from stashtrace.whole_files import whole_file


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
