"""Where ``check`` and ``diff`` find the runs of a side: run directories, saved baselines by name or file, URLs."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.find_runs import read_runs
from stashtrace.cli.parsing import existing_run
from stashtrace.errors import FormatError, MissingDataError, UsageError
from stashtrace.files.whole_files import complete_file, open_binary, read_whole, written_to
from stashtrace.record.remote import fetch, is_url, read_file, write_file
from stashtrace.text.prose import list_some

if TYPE_CHECKING:
    from stashtrace.analysis.compare.change import Side
    from stashtrace.analysis.compare.steps_of_run import StepsOfRun

#: Folder of named baselines.
DEFAULT_FOLDER = ".stashtrace/baselines"
_SUFFIX = ".json"
#: Command that makes a baseline, in hints.
_SAVES = "`stashtrace check RUN --save-baseline NAME`"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: A baseline of 512 steps, 13 kinds and 1,024 ranks has 500 KB for each run.
_LARGEST_BYTES = 256 << 20


def side_of(name: str, sources: Sequence[str], folder: str | None = None) -> Side:
    """Return the runs before or after a change.

    ``name``: what sentences call them. ``sources``: each a run directory, files of another tool, the URL of a run
    directory, or a baseline by file or URL. ``folder``: folder or URL of baselines: a source may then also be the name
    of one, which comes before a path of that name. Raises MissingDataError if one is not there, or has no steps.
    """
    from stashtrace.analysis.compare.change import Side

    return Side(name, tuple(run for source in sources for run in _runs_of(source, folder)))


def name_of(sources: Sequence[str]) -> str:
    """Return what to call the runs of a side."""
    return list_some(sources)


def _runs_of(source: str, folder: str | None) -> tuple[StepsOfRun, ...]:
    if is_url(source):
        return _behind_url(source)
    by_name = folder is not None and _NAME.fullmatch(source) is not None
    if by_name:
        place = _place(source, folder or "")
        found = read_file(place) if is_url(place) else _bytes_of(Path(place))
        if found is not None:
            return _read(_decode(found, place), place, source)
    if source.endswith(_SUFFIX) and Path(source).is_file() and _is_baseline(Path(source)):
        return _read(_text_of(Path(source)), source)
    if Path(source).exists() or not by_name:
        return (steps_of(existing_run(source)),)
    known = _names(folder or "")
    there = f"baselines there: {', '.join(known)}; " if known else ""
    raise MissingDataError(
        f"{source} is neither a baseline in {folder} nor a run directory",
        hint=f"{there}`stashtrace check RUN --save-baseline {source}` saves one",
    )


def steps_of(path: Path, name: str = "") -> StepsOfRun:
    """Load a run for a comparison; what is missing from it is no reason to say more than one line."""
    from stashtrace.analysis.compare.steps_of_run import steps_of_run
    from stashtrace.analysis.lines.functions_of_run import functions_of_run

    trace = read_runs(str(path), quiet=True)
    try:
        launch, directory = _launch_of(path)
        run, functions = steps_of_run(trace, name or str(path)), functions_of_run(trace)
        return replace(run, launch=launch, directory=directory, functions=functions)
    except MissingDataError as error:  # of several runs, one has to be named
        raise MissingDataError(f"{name or path}: {error}", hint=error.hint) from error


def _launch_of(path: Path) -> tuple[tuple[str, ...], str]:
    """Return the command that was recorded and its working directory; empty where ``run.json`` lacks them."""
    from stashtrace.files.run_facts import json_object, valid_facts
    from stashtrace.format.reader import RUN_FILE

    try:
        facts = valid_facts(json_object(read_whole(path / RUN_FILE)))
    except (OSError, ValueError):  # files of other tools, or a damaged run, of which loading has said so
        return (), ""
    return tuple(facts.get("command", ())), facts.get("working_directory", "")


def save(name: str, runs: Sequence[StepsOfRun], folder: str = DEFAULT_FOLDER) -> str:
    """Write a baseline, and return where it is. Raises StashtraceError if it cannot be written."""
    from stashtrace import __version__
    from stashtrace.analysis.compare.baseline import baseline_text

    text, place = baseline_text(runs, __version__), _place(name, folder)
    if is_url(place):
        write_file(place, text.encode())
        return place
    target = Path(place)
    hint = "choose another folder with --baselines"
    with written_to(target.parent, hint):
        target.parent.mkdir(parents=True, exist_ok=True)
    with complete_file(target, hint) as partial:
        partial.write_text(text, encoding="utf-8")
    return place


def check_name(name: str) -> None:
    """Raise UsageError unless a baseline may have this name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--save-baseline {name} is no name for a baseline", hint="use letters, digits, points, - and _, as in main"
        )


def _place(name: str, folder: str) -> str:
    return f"{folder.rstrip('/')}/{name}{_SUFFIX}"


def _names(folder: str) -> list[str]:
    return [] if is_url(folder) else sorted(path.stem for path in Path(folder).glob(f"*{_SUFFIX}"))[:12]


def _behind_url(url: str) -> tuple[StepsOfRun, ...]:
    if url.partition("?")[0].endswith(_SUFFIX):
        content = read_file(url)
        if content is None:
            raise MissingDataError(f"{url} does not exist", hint=f"{_SAVES} saves one")
        return _read(_decode(content, url), url)
    from stashtrace.loading.gather import is_wanted

    with tempfile.TemporaryDirectory(prefix="stash-fetched-") as place:
        fetch(url, Path(place), wanted=is_wanted)
        return (steps_of(Path(place), url),)


def _read(text: str, place: str, name: str = "") -> tuple[StepsOfRun, ...]:
    from stashtrace.analysis.compare.baseline import read_baseline

    return read_baseline(text, place, name or Path(place.partition("?")[0]).stem, _saves_again(place))


def _saves_again(place: str) -> str:
    """Return the hint of a file that is no usable baseline: the command that saves it in the same place."""
    folder, _, file = place.partition("?")[0].rpartition("/")
    name = file.removesuffix(_SUFFIX)
    if not _NAME.fullmatch(name):
        return f"{_SAVES} saves one"
    where = "" if folder == DEFAULT_FOLDER else f" --baselines {shlex.quote(folder or '.')}"
    return f"`stashtrace check RUN --save-baseline {name}{where}` saves it again"


def _is_baseline(path: Path) -> bool:
    """Distinguish a baseline from a trace of another tool, which may end in .json too: by its first key."""
    with open_binary(path) as file:
        return b'"stashtrace_baseline"' in file.read(256)


def _text_of(path: Path) -> str:
    return _decode(_bytes_of(path) or b"", str(path))


def _bytes_of(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise FormatError(f"{path} is larger than any baseline", hint=f"{_SAVES} saves one")
        return read_whole(path)
    except FileNotFoundError:
        return None


def _decode(content: bytes, place: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{place} is not a usable baseline: it is not UTF-8 text", hint=_saves_again(place)) from None
