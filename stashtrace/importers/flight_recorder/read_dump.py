"""Read a dump: its format, its rank, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stashtrace.errors import ImporterError
from stashtrace.importers.flight_recorder.collective_rows import add_entries
from stashtrace.importers.flight_recorder.dump_entries import (
    MOST_RANKS,
    Entry,
    Group,
    read_entry,
    read_groups,
    read_status,
)
from stashtrace.importers.flight_recorder.pickle import read_pickle
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.import_limits import parse_json, parse_next
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import Severity

#: A dump of 2,000 operations with their stacks takes a few MiB.
_LARGEST_BYTES = 256 << 20
_NAMED_RANK = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
_TRAILING_NUMBER = re.compile(r"(\d+)$")
_KNOWN_MAJORS = ("1.", "2.")
#: Unfinished operations that are reported one by one.
_REPORTED_COUNT = 8


def sniff(head: bytes, path: Path) -> bool:
    """Return True for dumps, as pickle or JSON."""
    if head[:1] == b"\x80":
        return b"pg_config" in head or (b"profiling_name" in head and b"time_created_ns" in head)
    start = head.lstrip()[:1] == b"{"
    return start and (b'"time_created_ns"' in head or (b'"pg_status"' in head and b'"pg_config"' in head))


def load(source: Source, context: ImportContext) -> None:
    """Read the dump of one rank."""
    name = source.path.name
    with source.open() as stream:
        data = stream.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ImporterError(f"{source.path} is larger than any dump of the Flight Recorder (256 MiB)")
    dump, whole = read_pickle(data, name) if data[:1] == b"\x80" else _read_json(data.decode(errors="replace"))
    if not isinstance(dump, dict):
        raise ImporterError(f"{source.path} is not a dump of the Flight Recorder: it holds a {type(dump).__name__}")
    if not whole:
        context.lose("file_cut", advice=f"{name} is cut: its last operations, or its groups, are missing")
    groups = read_groups(dump)
    raw = dump.get("entries")
    parsed = [read_entry(entry, groups) for entry in (raw if isinstance(raw, list | tuple) else ())]
    entries = [entry for entry in parsed if entry is not None]
    if len(entries) < len(parsed):
        damaged = len(parsed) - len(entries)
        context.lose("damaged_entries", damaged, advice=f"{name} has entries without their main fields")
    if not entries and not groups:
        raise ImporterError(
            f"{source.path} holds no operation",
            hint="set TORCH_FR_BUFFER_SIZE, or TORCH_NCCL_TRACE_BUFFER_SIZE for an older torch, to 2000",
        )
    _record_version(dump, name, context)
    rank = _rank_of(source.path, dump)
    world = next((g for g in groups.values() if g.description == "default_pg"), None)
    process = context.process(
        pid=0, rank=rank, world_size=len(world.members) if world is not None and world.members else -1
    )
    if rank < 0:
        context.lose(
            "rank_unknown",
            process_id=process,
            severity=Severity.ERROR,
            advice=f"{name} does not say its rank: let its name end in it, such as nccl_trace_rank_3",
        )
    add_entries(entries, groups, read_status(dump), process, context)
    _report(entries, groups, process, context)


def _read_json(text: str) -> tuple[Any, bool]:
    """Return the dump, and whether it is whole; of a cut one the entries before the cut."""
    try:
        return parse_json(text), True
    except ValueError:
        pass
    entries = []
    match = re.search(r'"entries"\s*:\s*\[', text)
    at = match.end() if match else len(text)
    while at < len(text):
        at += len(text[at : at + 64]) - len(text[at : at + 64].lstrip(", \n\r\t"))
        try:
            entry, at = parse_next(text, at)
        except ValueError:
            break
        entries.append(entry)
    return {"entries": entries}, False


def _rank_of(path: Path, dump: Mapping[Any, Any]) -> int:
    """Return the rank that a dump says, as those of torchcomms may, else that of its file's name; -1 if unknown."""
    said = dump.get("rank")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < MOST_RANKS:
        return said
    stem = path.name
    for suffix in (".gz", ".zst", ".json", ".pickle", ".pkl", ".pt", ".bin"):
        stem = stem.removesuffix(suffix)
    numbers = _NAMED_RANK.findall(stem) or _TRAILING_NUMBER.findall(stem)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else -1


def _record_version(dump: Mapping[Any, Any], name: str, context: ImportContext) -> None:
    version = str(dump.get("version", ""))
    context.say("flight_recorder.version", version or "unknown")
    library = dump.get("comm_lib_version", dump.get("nccl_version"))
    if isinstance(library, str) and library:
        context.say("flight_recorder.library", library)
    if version and not version.startswith(_KNOWN_MAJORS):
        context.doubt_newer(f"{name} is of version {version}", "2.x")


def _report(entries: Sequence[Entry], groups: Mapping[str, Group], process: int, context: ImportContext) -> None:
    """Report operations that were overwritten, and those that never ended."""
    first = min((e.record for e in entries if e.record >= 0), default=0)
    if first > 0:
        context.lose(
            "ring_overwritten",
            first,
            process_id=process,
            severity=Severity.INFO,
            advice="the recorder keeps the last operations only: TORCH_FR_BUFFER_SIZE says how many",
        )
    unfinished = [e for e in entries if not e.finished]
    context.say("flight_recorder.unfinished", str(len(unfinished)), process)
    for entry in unfinished[:_REPORTED_COUNT]:
        place = f", called in {entry.place}" if entry.place else ""
        operation = f"{entry.op.name.lower()} {entry.sequence} of {groups[entry.group].title}{place}"
        context.say("flight_recorder.unfinished_operation", operation, process)
