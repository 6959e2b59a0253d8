"""Print the result of a command as text or JSON, and write its picture into a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.screen import Screen
from stashtrace.errors import OutputError, UsageError
from stashtrace.files.whole_files import complete_file
from stashtrace.text.visible import finite

if TYPE_CHECKING:
    from stashtrace.report.blocks import Blocks


def print_answer(format_name: str, lines: Sequence[str], content: Any) -> None:
    """Write ``lines`` to stdout, or ``content`` where the format is ``json``."""
    if format_name == "json":
        print_json(content)
    else:
        print_lines(lines)


def print_blocks(format_name: str, blocks: Blocks, content: Any, *, width: int = 96) -> None:
    """Write an answer to stdout in one of :data:`stashtrace.cli.parsing.DOCUMENT_FORMATS`; ``content``: for JSON."""
    from stashtrace.report.blocks import markdown_of, text_lines

    if format_name == "markdown":
        sys.stdout.write(markdown_of(blocks) + "\n")
    else:
        print_answer(format_name, text_lines(blocks, width) if format_name != "json" else [], content)


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
def ignore_broken_pipe() -> Iterator[None]:
    """Keep the exit code when the reader of stdout has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def open_output(name: str, inside: str, *, option: str = "-o", made: Path | None = None) -> Path:
    """Return the path of a file that :func:`write_output` will be able to write, as far as is known before.

    It is written next to the target and renamed, so the folder must be writable, whatever the rights of an older file.
    ``inside``: name of a file for the hint, where a folder was given. ``option``: which names the file. ``made``:
    folder that the command itself makes. Raises OutputError if the target is not a file, or its folder is not there or
    may not be written to.
    """
    target = Path(name)
    folder = target.absolute().parent
    hint = f"choose another file with {option}"
    if target.is_dir():
        reason, hint = "it is a folder", f"name a file in it: {option} {target / inside}"
    elif made is not None and folder == made.absolute() and not folder.exists():
        return target
    elif not folder.is_dir():
        reason = "no such folder"
    elif target.exists() and not target.is_file():
        reason = "it is a device or a pipe, no file"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = "permission denied"
    else:
        return target
    raise OutputError(f"cannot write {target}: {reason}", hint=hint)


def write_output(target: Path, text: str, *, option: str = "-o") -> None:
    """Write a file that :func:`open_output` returned: complete, or not at all."""
    with complete_file(target, f"choose another file with {option}") as partial:
        partial.write_text(text, encoding="utf-8")


def write_plot(path: str | None, draw: Callable[..., None], *content: Any) -> None:
    """Draw the picture of ``--plot``, if it is given, and say so on stderr."""
    if path:
        draw(*content, path)
        Screen().say(f"wrote {path}")


def check_plot(path: str | None) -> None:
    """Check the file of ``--plot``, if it is given, before anything is measured or computed.

    Raises UsageError if the suffix is unknown or matplotlib is not installed. Raises OutputError if the file cannot be
    written; see :func:`open_output`.
    """
    if path:
        from stashtrace.lab.plot_helpers import check_plot_file

        check_plot_file(path)
        open_output(path, "plot.png", option="--plot")


def check_picture(path: str | None, *, made: Path | None = None) -> None:
    """As :func:`check_plot`, of a picture that a page has too: it is an SVG file, and needs no matplotlib."""
    if path:
        if not path.lower().endswith(".svg"):
            raise UsageError(f"{path}: this plot ends in .svg", hint=f"--plot {Path(path).with_suffix('.svg')}")
        open_output(path, "plot.svg", option="--plot", made=made)


def write_picture(path: str | None, draw: Callable[..., str], *content: Any) -> None:
    """Write the picture of ``--plot``, if it is given, and say so on stderr."""
    if path:
        write_output(Path(path), draw(*content), option="--plot")
        Screen().say(f"wrote {path}")
