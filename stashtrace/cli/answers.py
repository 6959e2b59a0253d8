"""Print the result of a command as text or JSON, and write its picture into a file."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stashtrace.visible import finite


def print_answer(format_name: str, lines: Sequence[str], content: Any) -> None:
    """Write ``lines`` to stdout, or ``content`` where the format is ``json``."""
    if format_name == "json":
        print_json(content)
    else:
        print_lines(lines)


def print_lines(lines: Sequence[str]) -> None:
    """Write lines of text to stdout."""
    sys.stdout.write("\n".join(lines) + "\n")


def print_json(content: Any) -> None:
    """Write JSON to stdout; numbers that are not finite are null."""
    sys.stdout.write(json.dumps(finite(content), indent=1) + "\n")


def discard_stdout() -> None:
    """Drop what is still to be written to stdout, whose reader (head, less) has ended; Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def answering() -> Iterator[None]:
    """Around the words of a command whose exit code is its answer: that stands, whoever reads the words."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def check_plot(path: str | None, *, made: Path | None = None) -> None:
    """Check the file of ``--plot``, if it is given, before anything is measured or computed.

    Parameters
    ----------
    path : str or None
    made : Path, optional
        Folder that the command itself makes.

    Raises
    ------
    UsageError
        If the suffix is unknown or matplotlib is not installed.
    CaptureError
        If the file cannot be written.
    """
    if path:
        from stashtrace.lab.plot import check_plot_file, check_plot_folder

        check_plot_file(path)
        check_plot_folder(path, made=made)
