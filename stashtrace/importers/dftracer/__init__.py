"""DFTracer: ``.pfw`` and ``.pfw.gz``, one JSON object a line in an array that need not end.

    {"name":"HH"|"FH"|"SH","ph":"M",...}   a hash and its text: host, file, string
    {"name":"pread","cat":"POSIX","ph":"X","ts":us,"dur":us,"args":{"fhash":..,"ret":..,"offset":..}}   -> io
    {"name":"loop.iter","cat":"data_loader","ph":"X",...}   a function or a turn of a loop              -> spans

What is known of the training loop (``loop``) becomes batches, phases and step marks. The page
``docs/importers/dftracer.md`` says what cannot be known.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import LONGEST_LINE_BYTES, parse_json
from stashtrace.importers.context import BLOCKED_FROM, ImportContext, blocked_by_duration
from stashtrace.importers.dftracer.loop import Functions, Loop, has_own_rows, loop_of
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import IoFlag, IoOp, ProcessRole, Severity, SpanKind

#: Lines are parsed in pieces of about this size.
_PIECE_BYTES = 1 << 22
#: ``trace-3-of-8.pfw``: rank 3 of 8, as DLIO names its files.
_RANK_IN_NAME = re.compile(r"-(\d+)-of-(\d+)")
#: Numbers from here on are damage; in microseconds, what fits 64 bits of nanoseconds.
_HIGHEST = 1 << 62
_LATEST_US = _HIGHEST // 1000
#: Between two files of one hash.
_EITHER = " or "
_SIGNATURE = re.compile(rb'"cat"\s*:\s*"(dftracer|dlio_profiler)"')


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is a trace of DFTracer or of the profiler it came from."""
    start = head.lstrip(b"\x00 \t\r\n")
    if not start.startswith((b"[", b"{")):
        return False
    return ".pfw" in path.name.lower() or _SIGNATURE.search(start[: 1 << 14]) is not None


def load(source: Source, context: ImportContext) -> None:
    """Read one file: its processes, their I/O calls and functions."""
    events = _Events()
    cut = events.read(source)
    if not len(events.begin_us) and not events.counts:
        reason = "is cut before its first event" if cut else "holds no event"
        raise ImporterError(f"{source.path} {reason}", hint="DFTracer writes its events when the process ends")
    if cut:
        context.lose("file_cut", advice=f"{source.path.name} ends early ({cut}); what came before is used")
    if events.unreadable:
        context.lose("lines_unreadable", events.unreadable, advice=f"{source.path.name}: lines that are not JSON")
    if events.ambiguous:
        context.lose(
            "hashes_ambiguous",
            events.ambiguous,
            advice=f"{source.path.name}: a hash stands for two files; both are named",
        )
    if events.skipped:
        context.lose("events_skipped", events.skipped, severity=Severity.INFO, advice="event types that have no place")
    _place(events, source, context)


#: ("FH", hash), ("HH", hash), ("SH", hash), or ("", text).
_Named = tuple[str, Any]


@dataclass(slots=True)
class _Events:
    """Columns of one file; what repeats (names, hashes) is kept once and numbered."""

    begin_us: array[int] = field(default_factory=lambda: array("q"))
    length_us: array[int] = field(default_factory=lambda: array("q"))
    pid: array[int] = field(default_factory=lambda: array("q"))
    tid: array[int] = field(default_factory=lambda: array("q"))
    function: array[int] = field(default_factory=lambda: array("q"))
    file: array[int] = field(default_factory=lambda: array("q"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    result: array[int] = field(default_factory=lambda: array("q"))
    functions: dict[tuple[str, str], int] = field(default_factory=dict)
    files: dict[_Named, int] = field(default_factory=dict)
    texts: dict[_Named, str] = field(default_factory=dict)
    host_of: dict[int, _Named] = field(default_factory=dict)
    started: dict[int, dict[str, Any]] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    forks: dict[int, int] = field(default_factory=dict)
    #: Process -> name of a counter -> its times and values.
    counts: dict[int, dict[str, tuple[array[int], array[float]]]] = field(default_factory=dict)
    unreadable: int = 0
    skipped: int = 0
    ambiguous: int = 0

    def read(self, source: Source) -> str:
        """Take every line; returns why the file ends early, empty if it does not."""
        torn, cut = b"", ""
        with source.open() as stream:
            while True:
                try:
                    piece = stream.read1(_PIECE_BYTES)  # type: ignore[attr-defined]
                except (EOFError, OSError, zlib.error) as error:
                    cut, piece = str(error), b""
                *lines, torn = (torn + piece).split(b"\n")
                if len(torn) > LONGEST_LINE_BYTES:  # no event is so long: what begins here is none
                    self.unreadable += 1
                    torn = b""
                for event in self._parsed(lines if piece else [*lines, torn]):
                    self._take(event)
                if not piece:
                    return cut

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
                self.unreadable += 1
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
                self.skipped += 1
        except (KeyError, TypeError, ValueError, OverflowError):
            self.unreadable += 1

    def _call(self, event: dict[str, Any]) -> None:
        name, category, args = str(event["name"]), str(event["cat"]), event.get("args") or {}
        if not isinstance(args, dict):
            raise TypeError("arguments without names")
        pid, tid, begin, length = int(event["pid"]), int(event["tid"]), int(event["ts"]), int(event.get("dur", 0))
        if "hhash" in args or "hostname" in args:
            self.host_of.setdefault(pid, ("HH", args["hhash"]) if "hhash" in args else ("", args["hostname"]))
        if category in ("dftracer", "dlio_profiler"):
            if name == "start":
                self.started.setdefault(pid, args)
            return
        file, offset, result = -1, -1, 0
        if is_io(category, name):
            path = ("FH", args["fhash"]) if "fhash" in args else ("", args.get("fname", ""))
            file = self.files.setdefault(path, len(self.files))
            offset, result = _signed(int(args.get("offset", -1))), _signed(int(args.get("ret") or 0))
            if result > 0:
                result = result * int(args.get("size", 1)) if name in MOVES_BYTES else 0
        elif name in ("fork", "vfork", "clone") and int(args.get("ret") or 0) > 0:
            self.forks[int(args["ret"])] = pid
        if not 0 <= begin < _LATEST_US > length or max(pid, tid, offset, result) >= _HIGHEST or min(pid, tid) < 0:
            raise ValueError("a number that no call has")
        self.function.append(self.functions.setdefault((category, name), len(self.functions)))
        for column, value in zip(
            (self.begin_us, self.length_us, self.pid, self.tid, self.file, self.offset, self.result),
            (begin, max(length, 0), pid, tid, file, max(offset, -1), max(result, -1)),
            strict=True,
        ):
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
                self.ambiguous += 1

    def text(self, key: _Named) -> str:
        """What a key stands for: itself in older traces, its definition, or nothing."""
        return str(key[1]) if not key[0] else self.texts.get(key, "")

    def _count(self, event: dict[str, Any]) -> None:
        pid, when_us, args = int(event["pid"]), int(event["ts"]), event.get("args") or {}
        if not isinstance(args, dict) or not 0 <= when_us < _LATEST_US or not 0 <= pid < _HIGHEST:
            raise ValueError("a number that no counter has")
        for key, value in args.items():
            if isinstance(value, int | float) and key != "hhash":
                times_us, values = self.counts.setdefault(pid, {}).setdefault(
                    f"{event['name']} {key}", (array("q"), array("d"))
                )
                values.append(float(value))
                times_us.append(when_us)


def _signed(number: int) -> int:
    """What a program meant that wrote -1 as a number without a sign."""
    return number - (1 << 64) if 1 << 63 <= number < 1 << 64 else number


def _place(events: _Events, source: Source, context: ImportContext) -> None:
    """Rows of one file, process by process."""
    names = list(events.functions)
    codes = context.codes([name for _, name in names])
    paths = context.codes([events.text(key) for key in events.files])
    if unknown := sum(1 for key in events.files if key[0] and not events.text(key)):
        context.lose("paths_unknown", unknown, advice=f"{source.path.name}: hashes of files without their text")
    columns = {n: np.array(getattr(events, n)) for n in ("begin_us", "length_us", "pid", "tid", "function", "file")}
    columns |= {"offset": np.array(events.offset), "result": np.array(events.result)}
    calls = np.array([is_io(category, name) for category, name in names], dtype=bool)
    ops = np.array([IO_OPS.get(name, 0) for _, name in names], dtype=np.int64)
    stdio = np.array([category in STDIO_CATEGORIES for category, _ in names], dtype=bool)
    elsewhere = np.array([has_own_rows(category, name) for category, name in names], dtype=bool)
    pids = list(dict.fromkeys([*columns["pid"].tolist(), *events.counts]))
    for pid in pids:
        own = {name: column[columns["pid"] == pid] for name, column in columns.items()}
        loop = loop_of(Functions.of(own, names))
        process_id = _process(events, pid, loop, source, context)
        tracks = {tid: context.tracks.thread(process_id, tid) for tid in np.unique(own["tid"]).tolist()}
        for tid in tracks:
            if not (name := events.threads.get((pid, tid), "")).isdigit():
                context.tracks.describe_thread(process_id, tid, name=name)
        own["track_id"] = np.array([tracks[tid] for tid in own["tid"].tolist()], dtype=np.int64)
        own["begin_ns"] = own["begin_us"] * 1000
        own["end_ns"] = own["begin_ns"] + own["length_us"] * 1000
        is_call = calls[own["function"]]
        _add_calls({n: c[is_call] for n, c in own.items()}, ops, stdio, paths, context)
        rest = {n: c[~is_call & ~elsewhere[own["function"]]] for n, c in own.items()}
        context.add(
            "spans",
            begin_ns=rest["begin_ns"],
            end_ns=rest["end_ns"],
            track_id=rest["track_id"],
            kind_code=int(SpanKind.USER),
            name_code=codes[rest["function"]],
        )
        loop.place(context, process_id, tracks)
        for name, (times_us, values) in events.counts.get(pid, {}).items():
            track = context.tracks.counter(process_id, name, "")
            context.add("counters", ts_ns=np.array(times_us) * 1000, track_id=track, value=np.array(values))


def _add_calls(own: dict[str, Any], ops: Any, stdio: Any, paths: Any, context: ImportContext) -> None:
    result = np.maximum(own["result"], -1)
    flags = np.where(stdio[own["function"]], int(IoFlag.STDIO), 0)
    flags |= blocked_by_duration(own["length_us"] * 1000, result)
    context.add(
        "io",
        begin_ns=own["begin_ns"],
        end_ns=own["end_ns"],
        track_id=own["track_id"],
        path_code=paths[own["file"]] if len(paths) else 0,
        op_code=ops[own["function"]],
        io_flags=flags,
        offset_bytes=own["offset"],
        result_bytes=result,
    )


def _process(events: _Events, pid: int, loop: Loop, source: Source, context: ImportContext) -> int:
    """Who the process is: by the file's name, else numbered if it trains; a worker by who forked it."""
    host = events.text(events.host_of.get(pid, ("", "")))
    start = events.started.get(pid, {})
    named = _RANK_IN_NAME.search(source.path.name)
    parent_pid = events.forks.get(pid, int(start.get("ppid") or 0))
    family = [i for i, p in enumerate(context.processes) if parent_pid and (p.host, p.pid) == (host, parent_pid)]
    parent = family[0] if family else -1
    rank = world = -1
    role, source_of_rank = ProcessRole.RANK, ""
    if named and int(named[1]) < int(named[2]):
        rank, world, source_of_rank = int(named[1]), int(named[2]), "file name"
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


# Which of DFTracer's calls are I/O, and which operation each is.

STDIO_CATEGORIES = frozenset(("STDIO",))
_CATEGORIES = STDIO_CATEGORIES | {"POSIX"}

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
MOVES_BYTES = frozenset(
    name
    for op in (
        IoOp.READ,
        IoOp.WRITE,
        IoOp.PREAD,
        IoOp.PWRITE,
        IoOp.READV,
        IoOp.WRITEV,
        IoOp.PREADV,
        IoOp.PWRITEV,
        IoOp.SENDFILE,
        IoOp.FREAD,
        IoOp.FWRITE,
    )
    for name in _FAMILIES[op].split()
)


def is_io(category: str, name: str) -> bool:
    """Whether the call has a row in ``io``; the others (fork, fcntl, access, ...) are spans."""
    return category in _CATEGORIES and name in IO_OPS
