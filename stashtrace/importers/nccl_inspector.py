"""Imports the JSON lines of NCCL's Inspector plugin: one file a process, one line a finished operation.

Formats v4.0 to v4.2 repeat header and metadata on every line; from v4.3 on a ``dump_stats`` line carries them for the
lines after it. Only verbose files hold times, in microseconds of the host's clock; the others hold durations, which
``nccl_inspector_rows`` lays end to end before the moment at which they were written.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import parse_json
from stashtrace.importers.collective_names import collective_op
from stashtrace.importers.context import ImportContext
from stashtrace.importers.nccl_inspector_rows import COLUMNS, Communicator, Proxy, add_operations
from stashtrace.importers.source import Source
from stashtrace.model.possible import MOST_RANKS

_BODIES = ("coll_perf", "p2p_perf", "proxy_trace")
_MARKS = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')
#: Longer lines are no record of this plugin: about 500 bytes, and 200 for each of at most 64 channels.
_LONGEST_BYTES = 1 << 20
#: Above all times (2116 in nanoseconds), sizes and counts; a higher number is damage.
_HIGHEST = 1 << 62
_KNOWN_VERSIONS = ("v4.", "v5.")


def sniff(head: bytes, path: Path) -> bool:
    """Whether this is a file of the Inspector."""
    return head.lstrip()[:1] == b"{" and any(mark in head for mark in _MARKS)


def load(source: Source, context: ImportContext) -> None:
    """Read one process's operations."""
    log = _Log()
    cut = False
    with source.open() as stream:
        try:
            _read(stream, log)
        except (EOFError, zlib.error):
            cut = True
    log.finish()
    if not log.columns["comm"]:
        raise ImporterError(
            f"{source.path} holds no operation of NCCL's Inspector",
            hint="it writes those above NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192) when a communicator is destroyed",
        )
    add_operations(log.columns, log.communicators, log.proxies, log.texts, context)
    _report(log, cut, source.path.name, context)


@dataclass(slots=True)
class _Log:
    """What the lines so far told.

    Attributes
    ----------
    left
        v4.3: lines of each kind that the last ``dump_stats`` announced and that have not come.
    """

    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in COLUMNS})
    communicators: list[Communicator] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    left: dict[str, int] = field(default_factory=dict)
    broken: int = 0
    orphans: int = 0
    missing: int = 0
    overwritten: dict[int, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=lambda: [""])
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _communicator: int = -1
    _dump_ns: int = 0

    def take(self, record: Any) -> None:
        """Note one line. Raises ValueError, TypeError, KeyError or AttributeError if it is none of this plugin's."""
        kind = next((k for k in _BODIES if k in record), "")
        header = record.get("header", record if "n_ranks" in record else None)
        if header is not None:
            self._enter(header, record.get("metadata", record))
        elif kind and self.left.get(kind, 0) > 0:
            self.left[kind] -= 1
        else:
            self.orphans += 1
            return
        if "dump_stats" in record:
            self._marker(record["dump_stats"])
        elif kind == "proxy_trace":
            self._proxy(record[kind])
        elif kind:
            self._operation(record[kind], "coll" if kind == "coll_perf" else "p2p")

    def finish(self) -> None:
        """Count what was announced and did not come."""
        self.missing += sum(self.left.values())
        self.left = {}

    def _enter(self, header: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.versions.add(str(metadata.get("inspector_output_format_version", "")))
        self._dump_ns = 1000 * int(metadata.get("dump_timestamp_us", 0))
        host, pid = str(metadata.get("hostname", "")), int(metadata.get("pid", 0))
        key = (host, pid, str(header["id"]), int(header["rank"]))
        found = self._known.get(key)
        if found is None:
            name = str(header.get("comm_name", ""))
            made = Communicator(
                host,
                pid,
                int(key[2], 16) % (1 << 64),
                "" if name == "unknown" else name,
                key[3],
                int(header["n_ranks"]),
                int(header.get("nnodes", -1)),
            )
            if not (0 <= key[3] < made.size <= MOST_RANKS and -1 <= made.nodes < MOST_RANKS and 0 <= pid < 1 << 62):
                raise ValueError("a header that no communicator has")
            found = self._known[key] = len(self.communicators)
            self.communicators.append(made)
        self._communicator = found

    def _marker(self, stats: dict[str, Any]) -> None:
        self.finish()
        self.left = {
            "coll_perf": int(stats.get("coll_records", 0)),
            "p2p_perf": int(stats.get("p2p_records", 0)),
            "proxy_trace": int(stats.get("proxy_records", 0)),
        }
        if self.versions <= {"v4.0", "v4.1", "v4.2"}:
            self.left = {}  # there each line says for itself what it belongs to
        dropped = int(stats.get("coll_dropped_total", 0)) + int(stats.get("p2p_dropped_total", 0))
        self.overwritten[self._communicator] = max(self.overwritten.get(self._communicator, 0), dropped)

    def _operation(self, body: dict[str, Any], prefix: str) -> None:
        op = collective_op(str(body[prefix]))
        times = body.get("event_trace_ts") or {}
        channels = times.get("kernel_events") or []
        starts = [c["kernel_start_ts"] for c in channels if c.get("kernel_start_ts", 0) > 0]
        stops = [c["kernel_stop_ts"] for c in channels if c.get("kernel_stop_ts", 0) > 0]
        values = (
            self._communicator,
            int(op),
            int(prefix == "p2p"),
            int(body[f"{prefix}_sn"]),
            int(body[f"{prefix}_msg_size_bytes"]),
            round(1000 * float(body[f"{prefix}_exec_time_us"])),
            int(body.get("p2p_peer", -1)),
            self._dump_ns,
            1000 * int(times.get(f"{prefix}_start_ts", 0)),
            1000 * int(times.get(f"{prefix}_stop_ts", 0)),
            1000 * int(min(starts, default=0)),
            1000 * int(max(stops, default=0)),
            len(channels),
            min(len(starts), len(stops)),
            self._text(body.get("coll_algo")),
            self._text(body.get("coll_proto")),
            int(bool(body.get("graphCaptured", False))),
        )
        if max(values) >= _HIGHEST or min(values) < -1:
            raise ValueError("a number that no operation has")
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def _proxy(self, body: dict[str, Any]) -> None:
        times = {str(name): 1000 * int(value) for name, value in (body.get("event_trace_ts") or {}).items()}
        size = int(body.get("trans_size_bytes", 0))
        if max([size, *times.values()]) >= _HIGHEST or min([size, *times.values()]) < 0:
            raise ValueError("a number that no transfer has")
        parent = (self._communicator, body.get("parent_type") == "p2p", int(body.get("parent_sn", -1)))
        self.proxies.append(Proxy(parent, body.get("record_type") == "proxy_op", size, times))

    def _text(self, text: object) -> int:
        known = "" if text is None or text == "unknown" else str(text)
        if known not in self.texts:
            self.texts.append(known)
        return self.texts.index(known)


def _read(stream: BinaryIO, log: _Log) -> None:
    """Hand over each line; count those that are damaged."""
    skipping = False
    while line := stream.readline(_LONGEST_BYTES):
        whole = line.endswith(b"\n")
        if skipping:
            skipping = not whole
            continue
        if not whole and len(line) == _LONGEST_BYTES:
            skipping, log.broken = True, log.broken + 1
            continue
        if line.isspace():
            continue
        try:
            log.take(parse_json(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            log.broken += 1


def _report(log: _Log, cut: bool, name: str, context: ImportContext) -> None:
    if cut:
        context.lose("file_cut", advice=f"{name} ends in the middle of its compressed data")
    if log.broken:
        context.lose("broken_lines", log.broken, advice=f"{name} has lines that are cut or are no records")
    if log.orphans:
        context.lose(
            "lines_without_header", log.orphans, advice=f"{name} has records whose dump_stats line is not in the file"
        )
    if log.missing:
        context.lose(
            "announced_records_missing", log.missing, advice=f"{name} holds less than its dump_stats lines announce"
        )
    if sum(log.overwritten.values()):
        context.lose(
            "ring_overwritten",
            sum(log.overwritten.values()),
            advice="set NCCL_INSPECTOR_DUMP_COLL_RING_SIZE higher or the dump interval shorter",
        )
    unknown = sorted(v for v in log.versions if not v.startswith(_KNOWN_VERSIONS) and v)
    if unknown:
        context.doubt(
            "newer_schema",
            f"{name} is of format {unknown[0]}, newer than v4.3, the newest tested: fields may mean something else",
        )
    context.say("nccl_inspector.format", ", ".join(sorted(v for v in log.versions if v)) or "unknown")
