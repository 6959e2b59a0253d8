"""Where a history is: a local folder or a URL; files are listed, read and added, never changed."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from stashtrace.errors import MissingDataError, OutputError
from stashtrace.lab.history.sections import SUFFIX, RunRows, parquet_bytes, require_parquet
from stashtrace.output_files import written_to
from stashtrace.record.remote import claim_remote_file, is_url, list_files, local_path, read_files
from stashtrace.whole_files import claim_file, give_mode, read_whole

_HINT = "choose another folder or URL with --history"
#: Digits of a run's id in the name of its file.
_ID_DIGITS = 12


class Place:
    """A folder of a history.

    ``text``: path or URL, as it was given. Raises UsageError if pyarrow, or fsspec for a URL, is not installed.
    """

    def __init__(self, text: str) -> None:
        require_parquet("a history")
        self.text = text
        #: None for a URL of another machine.
        self.folder: Path | None = local_path(text) if is_url(text) else Path(text)

    def names(self) -> list[str]:
        """Return the names of its files, the earliest run first.

        Raises MissingDataError if there is none. Raises FormatError if a URL cannot be read.
        """
        if self.folder is None:
            found = list_files(self.text, SUFFIX)
        else:
            try:
                with os.scandir(self.folder) as entries:
                    found = sorted(entry.name for entry in entries if entry.name.endswith(SUFFIX))
            except FileNotFoundError:
                raise MissingDataError(f"{self.text} does not exist", hint=_fill(self.text)) from None
            except OSError as error:
                raise MissingDataError(
                    f"{self.text} cannot be read: {error.strerror}", hint=_fill(self.text)
                ) from error
        if not found:
            raise MissingDataError(f"{self.text} holds no run of a history", hint=_fill(self.text))
        return found

    def read(self, names: Sequence[str]) -> dict[str, bytes | str]:
        """Return the content of files by name; the reason, as a text, of one that cannot be read."""
        if self.folder is None:
            return read_files(self.text, names)
        found: dict[str, bytes | str] = {}
        for name in names:
            try:
                found[name] = read_whole(self.folder / name)
            except OSError as error:
                found[name] = error.strerror or str(error)
        return found

    def check_writable(self) -> None:
        """Make the folder, and check that a file can be made in it; of a URL this is known when it is written.

        Raises OutputError if the system refuses.
        """
        if self.folder is None:
            return
        with written_to(self.folder, _HINT):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write {self.folder}: permission denied", hint=_HINT)

    def add(self, run: RunRows) -> str | None:
        """Add the file of a run; return its name, or None if the same one is there.

        Raises OutputError if it cannot be written.
        """
        name = file_name(run)
        content = parquet_bytes(run)
        if self.folder is None:
            return name if claim_remote_file(self.text, name, content) else None
        self.check_writable()
        target = self.folder / name
        with written_to(target, _HINT):
            if not claim_file(target, content):
                return None
            # Who may read the folder may read what is in it, however private the run's own directory is.
            give_mode(target, self.folder.stat().st_mode & 0o666)
        return name


def file_name(run: RunRows) -> str:
    """Return the name of a run's file: when it began, its id, and a digest, so that nothing is ever replaced."""
    plain = "".join(c for c in os.path.basename(run.run_id) if c.isalnum())[:_ID_DIGITS] or "run"
    return f"{file_time(run.begin_ns)}-{plain}-{run.digest}{SUFFIX}"


def file_time(moment_ns: int) -> str:
    """Return what the name of a file begins with: when its run began, UTC."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment_ns // 1_000_000_000))


def _fill(text: str) -> str:
    text = shlex.quote(text)
    return f"`stashtrace run --history {text} -- CMD` adds a run, `stashtrace history {text} --add RUN` one that exists"
