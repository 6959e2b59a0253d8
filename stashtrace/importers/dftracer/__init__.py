"""DFTracer: ``.pfw`` and ``.pfw.gz``, one JSON object a line in an array that need not end.

    {"name":"HH"|"FH"|"SH","ph":"M",...}   a hash and its text: host, file, string
    {"name":"pread","cat":"POSIX","ph":"X","ts":us,"dur":us,"args":{"fhash":..,"ret":..,"offset":..}}   -> io
    {"name":"loop.iter","cat":"data_loader","ph":"X",...}   a function or a turn of a loop              -> spans

``loop`` finds the training loop in them: batches, phases and step marks. The page ``docs/importers/dftracer.md`` says
what cannot be known.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.dftracer.loop import Functions, Loop, has_own_rows, loop_of
from stashtrace.importers.import_context import (
    TRANSFERS,
    Bools,
    ImportContext,
    Int64,
    blocked_by_duration,
    per_distinct,
)
from stashtrace.importers.import_limits import HIGHEST, LONGEST_LINE_BYTES, parse_json
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import IoFlag, IoOp, ProcessRole, Severity, SpanKind
from stashtrace.schema.trace import BLOCKED_FROM

#: ``trace-3-of-8.pfw``: rank 3 of 8, as DLIO names its files.
_RANK_IN_NAME = re.compile(r"-(\d+)-of-(\d+)")
_LATEST_US = HIGHEST // 1000
#: Between the names of two files with one hash.
_EITHER = " or "
_TRACERS = ("dftracer", "dlio_profiler")
_SIGNATURE = re.compile(rb'"cat"\s*:\s*"(dftracer|dlio_profiler)"')


def sniff(head: bytes, path: Path) -> bool:
    """Return True for DFTracer and DLIO Profiler traces."""
    start = head.lstrip(b"\x00 \t\r\n")
    if not start.startswith((b"[", b"{")):
        return False
    return ".pfw" in path.name.lower() or _SIGNATURE.search(start[: 1 << 14]) is not None


def load(source: Source, context: ImportContext) -> None:
    """Read one file: its processes, their I/O calls and functions."""
    name, events = source.path.name, _Events()
    for lines, too_long_count in source.lines(LONGEST_LINE_BYTES):
        events.take(lines)
        events.unreadable_count += too_long_count
    cut = source.cut_reason
    if not events.columns["pid"] and not events.counts:
        reason = "holds no event" if cut is None else "is cut before its first event"
        raise ImporterError(f"{source.path} {reason}", hint="DFTracer writes its events when the process ends")
    if cut is not None:
        context.lose("file_cut", advice=f"{name} ends early ({cut}); what came before is used")
    if events.unreadable_count:
        context.lose("lines_unreadable", events.unreadable_count, advice=f"{name}: lines that are not JSON")
    if events.ambiguous_count:
        advice = f"{name}: a hash stands for two files; both are named"
        context.lose("hashes_ambiguous", events.ambiguous_count, advice=advice)
    if events.skipped_count:
        advice = "event types that have no place"
        context.lose("events_skipped", events.skipped_count, severity=Severity.INFO, advice=advice)
    _place(events, source, context)


#: ("FH", hash), ("HH", hash), ("SH", hash), or ("", text).
_Named = tuple[str, Any]
#: Columns of the calls as read; function and file are places in ``functions`` and ``files``.
_COLUMNS = ("function", "begin_us", "length_us", "pid", "tid", "file", "offset", "result")


@dataclass(slots=True)
class _Events:
    """Columns of one file. Repeated values (names, hashes) are kept once and numbered."""

    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _COLUMNS})
    functions: dict[tuple[str, str], int] = field(default_factory=dict)
    files: dict[_Named, int] = field(default_factory=dict)
    texts: dict[_Named, str] = field(default_factory=dict)
    host_of: dict[int, _Named] = field(default_factory=dict)
    started: dict[int, dict[str, Any]] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    forks: dict[int, int] = field(default_factory=dict)
    #: Process -> name of a counter -> its times and values.
    counts: dict[int, dict[str, tuple[array[int], array[float]]]] = field(default_factory=dict)
    unreadable_count: int = 0
    skipped_count: int = 0
    ambiguous_count: int = 0

    def take(self, lines: list[bytes]) -> None:
        """Add the events of some lines."""
        for event in self._parsed(lines):
            self._take(event)

    def _parsed(self, lines: list[bytes]) -> Iterator[dict[str, Any]]:
        texts = [text for line in lines if (text := line.strip(b"\x00 \t\r\n,")).startswith(b"{")]
        try:
            return iter(parse_json(b"[" + b",".join(texts) + b"]"))
        except ValueError:
            return self._one_by_one(texts)

    def _one_by_one(self, texts: list[bytes]) -> Iterator[dict[str, Any]]:
        for text in texts:
            try:
                event = parse_json(text)
            except ValueError:
                self.unreadable_count += 1
            else:
                yield event

    def _take(self, event: dict[str, Any]) -> None:
        try:
            kind = event["ph"]
            if kind == "X":
                self._call(event)
            elif kind == "M":
                self._definition(event)
            elif kind == "C":
                self._count(event)
            else:
                self.skipped_count += 1
        except (KeyError, TypeError, ValueError, OverflowError):
            self.unreadable_count += 1

    def _call(self, event: dict[str, Any]) -> None:
        name, category, args = str(event["name"]), str(event["cat"]), event.get("args") or {}
        if not isinstance(args, dict):
            raise TypeError("arguments without names")
        pid, tid, begin, length = int(event["pid"]), int(event["tid"]), int(event["ts"]), int(event.get("dur", 0))
        if "hhash" in args or "hostname" in args:
            self.host_of.setdefault(pid, ("HH", args["hhash"]) if "hhash" in args else ("", args["hostname"]))
        if category in _TRACERS:
            if name == "start":
                self.started.setdefault(pid, args)
            return
        file, offset, result = -1, -1, 0
        if is_io(category, name):
            path = ("FH", args["fhash"]) if "fhash" in args else ("", args.get("fname", ""))
            file = self.files.setdefault(path, len(self.files))
            offset, result = _undo_unsigned(int(args.get("offset", -1))), _undo_unsigned(int(args.get("ret") or 0))
            if result > 0:
                result = result * int(args.get("size", 1)) if name in MOVES_BYTES else 0
        elif name in ("fork", "vfork", "clone") and int(args.get("ret") or 0) > 0:
            self.forks[int(args["ret"])] = pid
        if not 0 <= begin < _LATEST_US > length or max(pid, tid, offset, result) >= HIGHEST or min(pid, tid) < 0:
            raise ValueError("a number that no call has")
        function = self.functions.setdefault((category, name), len(self.functions))
        values = (function, begin, max(length, 0), pid, tid, file, max(offset, -1), max(result, -1))
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def _definition(self, event: dict[str, Any]) -> None:
        args = event["args"]
        if event["name"] == "thread_name":
            self.threads[int(event["pid"]), int(event["tid"])] = str(args["name"])
        else:
            key, text = (event["name"], args["value"]), str(args["name"])
            known = self.texts.setdefault(key, text)
            if text not in known.split(_EITHER):  # early versions hash to 16 bits
                self.texts[key] = known + _EITHER + text
                self.ambiguous_count += 1

    def text(self, key: _Named) -> str:
        """Return the text of a key: the key itself in older traces, its definition, or an empty text."""
        return str(key[1]) if not key[0] else self.texts.get(key, "")

    def _count(self, event: dict[str, Any]) -> None:
        pid, when_us, args = int(event["pid"]), int(event["ts"]), event.get("args") or {}
        if not isinstance(args, dict) or not 0 <= when_us < _LATEST_US or not 0 <= pid < HIGHEST:
            raise ValueError("a number that no counter has")
        for key, value in args.items():
            if isinstance(value, int | float) and key != "hhash":
                times_us, values = self.counts.setdefault(pid, {}).setdefault(
                    f"{event['name']} {key}", (array("q"), array("d"))
                )
                values.append(float(value))
                times_us.append(when_us)


def _undo_unsigned(number: int) -> int:
    """Undo the conversion of -1 to an unsigned number."""
    return number - (1 << 64) if 1 << 63 <= number < 1 << 64 else number


def _place(events: _Events, source: Source, context: ImportContext) -> None:
    """Add the rows of one file, process by process."""
    names = list(events.functions)
    codes = context.codes([name for _, name in names])
    paths = context.codes([events.text(key) for key in events.files])
    if unknown := sum(1 for key in events.files if key[0] and not events.text(key)):
        context.lose("paths_unknown", unknown, advice=f"{source.path.name}: hashes of files without their text")
    columns = {name: np.array(values) for name, values in events.columns.items()}
    is_call = np.array([is_io(category, name) for category, name in names], dtype=bool)
    is_span = ~is_call & ~np.array([has_own_rows(category, name) for category, name in names], dtype=bool)
    ops = np.array([IO_OPS.get(name, 0) for _, name in names], dtype=np.int64)
    is_stdio = np.array([category == _STDIO for category, _ in names], dtype=bool)
    pids = list(dict.fromkeys([*columns["pid"].tolist(), *events.counts]))
    for pid in pids:
        chosen = {name: column[columns["pid"] == pid] for name, column in columns.items()}
        loop = loop_of(Functions.of(chosen, names))
        process_id = _process(events, pid, loop, source, context)
        tracks = {tid: context.tracks.thread(process_id, tid) for tid in np.unique(chosen["tid"]).tolist()}
        for tid in tracks:
            if not (name := events.threads.get((pid, tid), "")).isdigit():
                context.tracks.describe_thread(process_id, tid, name=name)
        chosen["track_id"] = per_distinct(chosen["tid"], tracks.__getitem__)
        chosen["begin_ns"] = chosen["begin_us"] * 1000
        chosen["end_ns"] = chosen["begin_ns"] + chosen["length_us"] * 1000
        calls = {name: column[is_call[chosen["function"]]] for name, column in chosen.items()}
        _add_calls(calls, ops, is_stdio, paths, context)
        spans = {name: column[is_span[chosen["function"]]] for name, column in chosen.items()}
        context.add(
            "spans",
            begin_ns=spans["begin_ns"],
            end_ns=spans["end_ns"],
            track_id=spans["track_id"],
            kind_code=int(SpanKind.USER),
            name_code=codes[spans["function"]],
        )
        loop.place(context, process_id, tracks)
        for name, (times_us, values) in events.counts.get(pid, {}).items():
            track = context.tracks.counter(process_id, name, "")
            context.add("counters", ts_ns=np.array(times_us) * 1000, track_id=track, value=np.array(values))


def _add_calls(calls: dict[str, Int64], ops: Int64, is_stdio: Bools, paths: Int64, context: ImportContext) -> None:
    flags = np.where(is_stdio[calls["function"]], int(IoFlag.STDIO), 0)
    context.add(
        "io",
        begin_ns=calls["begin_ns"],
        end_ns=calls["end_ns"],
        track_id=calls["track_id"],
        path_code=paths[calls["file"]] if len(paths) else 0,
        op_code=ops[calls["function"]],
        io_flags=flags | blocked_by_duration(calls["length_us"] * 1000, calls["result"]),
        offset_bytes=calls["offset"],
        result_bytes=calls["result"],
    )


def _process(events: _Events, pid: int, loop: Loop, source: Source, context: ImportContext) -> int:
    """Add a process. Its rank is that of the file's name, else the next if it trains; a worker has its parent's."""
    host = events.text(events.host_of.get(pid, ("", "")))
    start = events.started.get(pid, {})
    in_name = _RANK_IN_NAME.search(source.path.name)
    parent_pid = events.forks.get(pid, int(start.get("ppid") or 0))
    family = [i for i, p in enumerate(context.processes) if parent_pid and (p.host, p.pid) == (host, parent_pid)]
    parent = family[0] if family else -1
    rank = world = -1
    role, source_of_rank = ProcessRole.RANK, ""
    if in_name and int(in_name[1]) < int(in_name[2]):
        rank, world, source_of_rank = int(in_name[1]), int(in_name[2]), "file name"
        role = ProcessRole.WORKER if loop.loads else role
    elif parent >= 0 and not loop.trains:
        rank, role = context.processes[parent].rank, ProcessRole.WORKER
    elif loop.trains:
        rank, source_of_rank = 1 + max((p.rank for p in context.processes), default=-1), "order of files"
    process_id = context.process(pid=pid, rank=rank, host=host, world_size=world, role=role, parent=parent)
    facts = {
        "command_line": events.text(("SH", start.get("cmd_hash"))).replace(";", " "),
        "dftracer_version": str(start.get("version", "")),
        "rank_from": source_of_rank,
        BLOCKED_FROM[0]: BLOCKED_FROM[1],
        **loop.facts,
    }
    for name, value in facts.items():
        if value:
            context.say(name, value, process_id)
    return process_id


# DFTracer's I/O calls and their operations.

_STDIO = "STDIO"

_FAMILIES: dict[IoOp, str] = {
    IoOp.READ: "read",
    IoOp.WRITE: "write",
    IoOp.PREAD: "pread pread64",
    IoOp.PWRITE: "pwrite pwrite64",
    IoOp.READV: "readv",
    IoOp.WRITEV: "writev",
    IoOp.PREADV: "preadv preadv2 preadv64",
    IoOp.PWRITEV: "pwritev pwritev2 pwritev64",
    IoOp.OPEN: "open open64 openat openat64 creat creat64",
    IoOp.CLOSE: "close",
    IoOp.LSEEK: "lseek lseek64",
    IoOp.STAT: "stat lstat fstat fstatat stat64 lstat64 fstat64 statx "
    "__xstat __lxstat __fxstat __fxstatat __xstat64 __lxstat64 __fxstat64 __fxstatat64",
    IoOp.FSYNC: "fsync fdatasync",
    IoOp.MMAP: "mmap mmap64",
    IoOp.MUNMAP: "munmap",
    IoOp.MSYNC: "msync",
    IoOp.SENDFILE: "sendfile sendfile64",
    IoOp.FOPEN: "fopen fopen64 fdopen freopen",
    IoOp.FCLOSE: "fclose",
    IoOp.FREAD: "fread",
    IoOp.FWRITE: "fwrite",
    IoOp.FSEEK: "fseek fseeko rewind",
    IoOp.FFLUSH: "fflush",
    IoOp.UNLINK: "unlink unlinkat remove",
    IoOp.RENAME: "rename renameat",
    IoOp.MKDIR: "mkdir mkdirat",
    IoOp.READDIR: "opendir readdir readdir64 closedir",
    IoOp.TRUNCATE: "truncate ftruncate truncate64 ftruncate64",
    IoOp.FADVISE: "posix_fadvise posix_fadvise64",
}
#: Name of the call -> IoOp.
IO_OPS: dict[str, int] = {name: int(op) for op, names in _FAMILIES.items() for name in names.split()}
#: Calls whose result is a number of bytes, or of items of ``size`` bytes.
MOVES_BYTES = frozenset(name for op in (*TRANSFERS, IoOp.FREAD, IoOp.FWRITE) for name in _FAMILIES[op].split())


def is_io(category: str, name: str) -> bool:
    """Return True for calls that are rows of ``io``; the others (fork, fcntl, access, ...) are spans."""
    return category in ("POSIX", _STDIO) and name in IO_OPS
