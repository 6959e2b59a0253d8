"""Opens a run: a directory of .stash and .ring files, or a single .stash. Offline side of the recorder.

``open_run`` reads heads and segment headers only; rows are read when a process is loaded, one process
at a time. Damage is a loss row; ``strict=True`` raises.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stashtrace.errors import FormatError, UnsupportedVersionError
from stashtrace.files.run_facts import read_facts, read_host_facts
from stashtrace.format.stash_file import StashFile
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import LossRow

RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class RawRun:
    """A run as it lies on disk."""

    #: Directory, or the file that was opened.
    path: str
    #: Content of run.json, empty if there is none.
    run: dict[str, Any]
    #: One for each process image, in the order in which they started. ``process.load()`` reads its rows.
    processes: list[StashFile]
    #: Those of no single process: unreadable files, missing run.json.
    losses: list[LossRow] = field(default_factory=list)
    #: What the follower of each host alone knows; none where nobody followed the run.
    host_facts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        """Id of the run, empty if unknown."""
        if self.run.get("run_id"):
            return str(self.run["run_id"])
        return next((str(p.metadata["run_id"]) for p in self.processes if p.metadata.get("run_id")), "")


def open_run(path: str | os.PathLike[str], *, strict: bool = False, run_id: str | None = None) -> RawRun:
    """Open a run directory or a single .stash file.

    ``path``: what ``stashtrace run --out`` made, or one file of it. ``strict``: raise on damage that otherwise becomes
    a loss row. ``run_id``: which run to take if the directory holds several; a prefix is enough. After a point follows
    the number of a start of an elastic job, which does not concern files. Raises FormatError if there is nothing to
    read, or several runs and no choice. Raises UnsupportedVersionError if a newer stashtrace wrote it.
    """
    path = os.fspath(path)
    run_id = (run_id or "").partition(".")[0] or None
    if not os.path.exists(path):
        raise FormatError(f"{path} does not exist", hint="record something: `stashtrace run -- CMD`")
    if not os.path.isdir(path):
        return RawRun(path, {}, [StashFile(path, strict=strict)])
    losses: list[LossRow] = []
    names = _list(path)
    stems = sorted({n.rpartition(".")[0] for n in names if n.endswith((".stash", ".ring"))})
    # File names begin with the pid, and pids start again now and then: their order says nothing.
    processes = sorted(_open_all(path, stems, strict, losses), key=start_ns)
    run = read_run_facts(path, losses, strict)
    if not processes:
        raise _nothing_in(path, stems, losses)
    processes = _choose(path, run, processes, run_id)
    link_forks(processes)
    if run_id is not None and not str(run.get("run_id", "")).startswith(run_id):
        run = {}
    if not run:
        advice = "run.json is missing: command, exit code and begin of the run are not known"
        losses.append(("format", "no_run_json", int(Severity.INFO), 1, advice))
    return RawRun(path, run, processes, losses, read_host_facts(path))


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error


def _open_all(path: str, stems: Sequence[str], strict: bool, losses: list[LossRow]) -> Iterator[StashFile]:
    newer: UnsupportedVersionError | None = None
    opened = 0
    for stem in stems:
        full = os.path.join(path, stem + ".stash")
        if not os.path.exists(full):
            advice = f"{stem}.ring has no .stash next to it, so its rows cannot be read"
            losses.append(("format", "ring_without_file", int(Severity.DATA_LOSS), 1, advice))
            continue
        try:
            yield StashFile(full, strict=strict)
            opened += 1
        except UnsupportedVersionError as error:
            if strict:
                raise
            newer = error
            losses.append(("format", "newer_version", int(Severity.DATA_LOSS), 1, str(error)))
        except FormatError as error:
            if strict:
                raise
            losses.append(("format", "unreadable_file", int(Severity.DATA_LOSS), 1, str(error)))
    if newer is not None and not opened:
        raise newer


def start_ns(process: StashFile) -> int:
    """Return when a process started, by its wall clock; 0 if its file does not say."""
    started = process.metadata.get("start_realtime_ns")
    return started if isinstance(started, int) else 0


def _nothing_in(path: str, stems: Sequence[str], losses: Sequence[LossRow]) -> FormatError:
    if stems:
        return FormatError(
            f"{path} holds no readable trace: {losses[0][4]}",
            hint=f"`stashtrace info {shlex.quote(str(path))}` lists what is there",
        )
    return FormatError(
        f"{path} holds no trace", hint="give the directory of `stashtrace run --out DIR -- CMD`; it holds .stash files"
    )


def read_run_facts(path: str, losses: list[LossRow], strict: bool = False) -> dict[str, Any]:
    """Return the content of ``run.json`` of a directory, empty if there is none; damage becomes a loss.

    Raises FormatError on damage with ``strict``.
    """
    try:
        return read_facts(os.path.join(path, RUN_FILE))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        if strict:
            raise FormatError(f"{os.path.join(path, RUN_FILE)} is damaged: {error}") from error
        losses.append(("format", "damaged_run_json", int(Severity.ERROR), 1, f"{RUN_FILE} is damaged: {error}"))
        return {}


def link_forks(processes: Sequence[StashFile]) -> None:
    """Give each forked child its parent, whose string ids are valid in the child too."""

    def identity(facts: Mapping[str, Any], pid: str, incarnation: str) -> tuple[Any, ...]:
        # Containers of one host share its boot, sometimes its name, and each has a process 1.
        return tuple(facts.get(key) for key in ("boot_id", "host", "pidns", pid, incarnation))

    known = {identity(p.metadata, "pid", "incarnation"): p for p in processes}
    for process in processes:
        parent = known.get(identity(process.metadata, "ppid", "parent_incarnation"))
        ancestor = parent
        while ancestor is not None and ancestor is not process:
            ancestor = ancestor.parent
        process.parent = parent if ancestor is None else None  # a damaged or reused pid must not close a circle


def _choose(path: str, run: Mapping[str, Any], processes: list[StashFile], run_id: str | None) -> list[StashFile]:
    """Files of one run. `stashtrace merge DIR OTHER...` lists the parts it brought together in run.json."""
    listed_parts = run.get("parts")
    own = str(run.get("run_id", ""))
    parts = (
        {str(part.get("run_id", "")) for part in listed_parts if isinstance(part, dict)}
        if isinstance(listed_parts, list)
        else set()
    )
    counts = Counter(own if (i := str(p.metadata.get("run_id", ""))) in parts else i for p in processes)
    if run_id is not None:
        chosen = [i for i in counts if i.startswith(run_id)]
        if len(chosen) != 1:
            raise FormatError(f"{path} holds no single run {run_id}", hint=f"it holds {', '.join(sorted(counts))}")
        wanted = {chosen[0]} | (parts if chosen[0] == own else set())
        return [p for p in processes if str(p.metadata.get("run_id", "")) in wanted]
    if len(counts) > 1:
        listed = ", ".join(f"{i or '(no id)'} ({n} processes)" for i, n in sorted(counts.items()))
        raise FormatError(
            f"{path} holds {len(counts)} runs: {listed}",
            hint=f"choose one with `--run {max(counts, key=counts.__getitem__)[:8]}`, "
            "or record each run into a directory of its own",
        )
    return processes
