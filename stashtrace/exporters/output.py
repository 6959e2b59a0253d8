"""Files that appear under their name only when they are complete. Used by every exporter."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stashtrace.errors import StashtraceError


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """Path to write to; it becomes ``path`` at the end, or vanishes on an error.

    Raises
    ------
    StashtraceError
        If the system refuses: no such folder, no permission, disk full.
    """
    partial = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise StashtraceError(f"cannot write {path}: {error.strerror}", hint="choose another file with -o") from error
    finally:
        partial.unlink(missing_ok=True)
