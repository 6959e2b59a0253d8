"""Write files that the user named: complete or not at all, with one clear line if the system refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stashtrace.errors import OutputError
from stashtrace.whole_files import whole_file


@contextmanager
def complete_file(path: Path, hint: str = "choose another file with -o") -> Iterator[Path]:
    """As :func:`stashtrace.whole_files.whole_file`, with a hint in its errors.

    Raises OutputError if the system refuses: no such folder, no permission, disk full.
    """
    with written_to(path, hint), whole_file(path) as partial:
        yield partial


@contextmanager
def written_to(path: Path, hint: str) -> Iterator[None]:
    """Raise what the system refuses inside as OutputError about a file or folder that is written there.

    Raises OutputError: in place of an OSError. A broken pipe stays one.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error
