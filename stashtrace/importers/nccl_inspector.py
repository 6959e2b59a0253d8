"""Imports the JSON lines of NCCL's Inspector plugin: one file a process, one line a finished operation.

Formats v4.0 to v4.2 repeat header and metadata on every line; from v4.3 on a ``dump_stats`` line carries them for the
lines after it. Only verbose files hold times, in microseconds of the host's clock; the others hold durations, which
``nccl_inspector`` lays end to end before the moment at which they were written.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import parse_json
from stashtrace.importers.collective_names import PER_PEER, collective_op, lane_hash
from stashtrace.importers.context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, DeviceClock, NcclFlag, Severity
from stashtrace.schema.possible import MOST_RANKS

# Rows of the tables from operations of NCCL's Inspector.
#
# verbose   call |-| return      start ...... stop        microseconds of the host, noticed late by a polling thread
#                           begin =============== end     the device's own duration, as late as these stamps allow
# else                  ==1== =2= ====3==== dump          durations only: laid end to end before the line was written

Int64 = npt.NDArray[np.int64]

#: Columns of the operations as read; times are 0 where the file has none.
COLUMNS = (
    "comm",
    "op",
    "p2p",
    "number",
    "size_bytes",
    "duration_ns",
    "peer",
    "dump_ns",
    "call_ns",
    "return_ns",
    "start_ns",
    "stop_ns",
    "channels",
    "timed",
    "algorithm",
    "protocol",
    "captured",
)
#: What is at least not known of a time that was laid out instead of measured.
_LAID_OUT_ERROR_NS = 1_000_000_000
#: Stamps are whole microseconds.
_STAMP_ERROR_NS = 1_000
#: Share of operations whose stamps fit their duration within the stated error.
_ERROR_QUANTILE = 99


@dataclass(frozen=True, slots=True)
class Communicator:
    """A header line: one communicator of one process; ``rank`` and ``size`` are within it."""

    host: str
    pid: int
    hash: int
    name: str
    rank: int
    size: int
    nodes: int

    @property
    def title(self) -> str:
        """What a person calls it."""
        return self.name or f"nccl {self.hash:x}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """One line of a network proxy: the operation that it worked for, and whether it is of the whole of it or of a step.

    ``parent`` is the communicator, whether it is a message, and its number; ``times`` are in nanoseconds.
    """

    parent: tuple[int, bool, int]
    whole: bool
    size_bytes: int
    times: Mapping[str, int]


def add_operations(
    columns: Mapping[str, array[int]],
    communicators: Sequence[Communicator],
    proxies: Sequence[Proxy],
    texts: Sequence[str],
    context: ImportContext,
) -> None:
    """Fill ``collectives``, ``collective_details``, ``groups`` and ``device_clocks``."""
    given = {name: np.frombuffer(values, dtype=np.int64).copy() for name, values in columns.items()}
    processes = _processes(communicators, context)
    lanes = _Lanes(given, communicators, processes, context)
    traced = given["start_ns"] > 0
    begin, end = np.empty(len(traced), dtype=np.int64), np.empty(len(traced), dtype=np.int64)
    begin[traced], end[traced] = _placed(given, traced)
    begin[~traced], end[~traced] = _laid_out(given, ~traced, processes)
    call = np.where(given["call_ns"] > 0, given["call_ns"], begin)
    size = np.array([c.size for c in communicators], dtype=np.int64)[given["comm"]]
    process_id = processes[given["comm"]]
    names = context.codes(op.name.lower() for op in CollectiveOp)
    order = np.lexsort((given["number"], call))
    # Waits and lengths come out of columns in the order of the file: the key of a row is its place after sorting.
    context.add(
        "collectives",
        **{
            name: values[order]
            for name, values in {
                "process_id": process_id,
                "track_id": _callers(processes, context)[given["comm"]],
                "communicator_track_id": lanes.track,
                "group_hash": lanes.hash,
                "sequence": given["number"],
                "op_code": given["op"],
                "name_code": names[given["op"]],
                "message_bytes": given["size_bytes"] * np.where(np.isin(given["op"], PER_PEER), size, 1),
                "peer_rank": given["peer"],
                "call_ns": call,
                "return_ns": np.where(given["return_ns"] > 0, given["return_ns"], -1),
                "begin_ns": begin,
                "end_ns": end,
                "device_begin_ns": begin,
                "device_end_ns": end,
            }.items()
        },
        status_code=0,
        source_code=int(CollectiveSource.PLUGIN),
    )
    codes = context.codes(texts)
    context.add(
        "collective_details",
        collective_key=np.arange(len(order)),
        **{
            name: values[order]
            for name, values in {
                "process_id": process_id,
                "algorithm_code": codes[given["algorithm"]],
                "protocol_code": codes[given["protocol"]],
                "channels_count": given["channels"],
                "timed_count": given["timed"],
                "nccl_flags": given["captured"] * int(NcclFlag.CAPTURED),
                **_by_proxies(given, proxies),
            }.items()
        },
    )
    _clocks(given, traced, process_id, context)
    lanes.report(given, context)


def _processes(communicators: Sequence[Communicator], context: ImportContext) -> Int64:
    """Process of each communicator. Its rank is that in its largest communicator: the lines name no other."""
    largest: dict[tuple[str, int], Communicator] = {}
    for each in communicators:
        key = (each.host, each.pid)
        if key not in largest or each.size > largest[key].size:
            largest[key] = each
    known = {
        key: context.process(pid=key[1], host=key[0], rank=most.rank, world_size=most.size)
        for key, most in largest.items()
    }
    return np.array([known[c.host, c.pid] for c in communicators], dtype=np.int64)


def _callers(processes: Int64, context: ImportContext) -> Int64:
    """Track for the unknown thread that called, by communicator."""
    found = []
    for process_id in processes.tolist():
        context.tracks.describe_thread(process_id, 0, name="callers of NCCL")
        found.append(context.tracks.thread(process_id, 0))
    return np.array(found, dtype=np.int64)


class _Lanes:
    """Operations by what numbers them: NCCL counts per communicator and function, messages on their own."""

    def __init__(
        self,
        given: Mapping[str, Int64],
        communicators: Sequence[Communicator],
        processes: Int64,
        context: ImportContext,
    ) -> None:
        kind = np.where(given["p2p"] == 1, -1, given["op"])
        key = given["comm"] * 64 + kind + 1
        distinct, example, self.code = np.unique(key, return_index=True, return_inverse=True)
        hashes, tracks = [], []
        for row in example.tolist():
            each = communicators[given["comm"][row]]
            what = "messages" if given["p2p"][row] else CollectiveOp(int(given["op"][row])).name.lower()
            title = f"{each.title} · {what}"
            process_id = int(processes[given["comm"][row]])
            hashes.append(lane_hash(each.hash, what))
            tracks.append(context.tracks.communicator(process_id, hashes[-1], title))
            crosses = -1 if each.nodes < 0 else int(each.nodes > 1)
            context.add(
                "groups",
                process_id=process_id,
                group_hash=np.array([hashes[-1]], dtype=np.uint64),
                name_code=context.code(title),
                backend_code=context.code("nccl"),
                group_rank=each.rank,
                group_size=each.size,
                observed_count=int(np.count_nonzero(key == distinct[len(hashes) - 1])),
                crosses_hosts=crosses,
                locality_code=context.code("host count unknown" if crosses < 0 else f"NCCL counts {each.nodes} hosts"),
            )
        self.hash = np.array(hashes, dtype=np.uint64)[self.code]
        self.track = np.array(tracks, dtype=np.int64)[self.code]

    def report(self, given: Mapping[str, Int64], context: ImportContext) -> None:
        """Count numbers that are not there between the first and the last of each lane."""
        count = int(self.code.max()) + 1
        low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
        np.minimum.at(low, self.code, given["number"])
        np.maximum.at(high, self.code, given["number"])
        missing = int((high - low + 1 - np.bincount(self.code, minlength=count)).clip(min=0).sum())
        if missing:
            context.lose(
                "operations_not_in_file",
                missing,
                advice="small ones (NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES), untimed ones, or those that a ring overwrote",
            )


def _placed(given: Mapping[str, Int64], rows: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Begin and end from stamps: both were noticed late, and the duration is the device's."""
    start, stop, duration = (given[name][rows] for name in ("start_ns", "stop_ns", "duration_ns"))
    duration = np.where(duration > 0, duration, np.maximum(stop - start, 0))
    begin = np.minimum(start, np.where(stop > 0, stop - duration, start))
    begin = np.maximum(begin, np.minimum(given["call_ns"][rows], start))
    return begin, begin + duration


def _laid_out(given: Mapping[str, Int64], rows: npt.NDArray[np.bool_], processes: Int64) -> tuple[Int64, Int64]:
    """Begin and end where only durations are known: one after the other, each before its line was written."""
    duration, written = given["duration_ns"][rows], given["dump_ns"][rows]
    owner = processes[given["comm"][rows]]
    begin, end = np.empty(len(duration), dtype=np.int64), np.empty(len(duration), dtype=np.int64)
    for process in np.unique(owner).tolist():
        own = np.flatnonzero(owner == process)
        passed = np.cumsum(duration[own])
        latest = np.minimum.accumulate((written[own] - passed)[::-1])[::-1]
        end[own] = passed + latest
        begin[own] = end[own] - duration[own]
    return begin, end


def _clocks(
    given: Mapping[str, Int64], traced: npt.NDArray[np.bool_], process_id: Int64, context: ImportContext
) -> None:
    """What the times are worth, so that ranks are not ordered by times that were laid out."""
    for process in np.unique(process_id).tolist():
        own = process_id == process
        seen, laid = own & traced, own & ~traced
        error = 0
        if seen.any():
            apart = np.abs(given["stop_ns"] - given["start_ns"] - given["duration_ns"])[seen & (given["stop_ns"] > 0)]
            error = int(np.percentile(apart, _ERROR_QUANTILE)) if len(apart) else 0
        if laid.any():
            written = given["dump_ns"][laid]
            error = max(error, _LAID_OUT_ERROR_NS, int(written.max() - written.min()))
            context.lose(
                "times_not_in_file",
                int(np.count_nonzero(laid)),
                process_id=process,
                severity=Severity.INFO,
                advice="only durations: set NCCL_INSPECTOR_DUMP_VERBOSE=1 to know when each operation ran",
            )
        context.add(
            "device_clocks",
            process_id=process,
            device_index=-1,
            clock_code=int(DeviceClock.GLOBALTIMER),
            anchors_count=int(np.count_nonzero(seen)),
            error_ns=max(error, _STAMP_ERROR_NS),
        )


def _by_proxies(given: Mapping[str, Int64], proxies: Sequence[Proxy]) -> dict[str, Int64]:
    """What the network's proxies did for each operation; -1 where none was seen.

    Their lines name the operation by a number that NCCL counts per function: one that several functions share is left
    out.
    """
    names = ("network_ns", "transfer_bytes", "gpu_wait_ns", "peer_wait_ns", "wire_wait_ns")
    out = {name: np.full(len(given["comm"]), -1, dtype=np.int64) for name in names}
    if not proxies:
        return out
    rows: dict[tuple[int, bool, int], int] = {}
    columns = (given[name].tolist() for name in ("comm", "p2p", "number"))
    for row, (comm, p2p, number) in enumerate(zip(*columns, strict=True)):
        key = (comm, bool(p2p), number)
        rows[key] = -1 if key in rows else row
    spans: dict[int, tuple[int, int]] = {}
    for proxy in proxies:
        row, times = rows.get(proxy.parent, -1), proxy.times
        if row < 0:
            continue
        for name in names:
            out[name][row] = max(out[name][row], 0)
        if proxy.whole:
            first, last = times.get("proxy_op_start_ts", 0), times.get("proxy_op_stop_ts", 0)
            if 0 < first <= last:
                low, high = spans.get(row, (first, last))
                spans[row] = (min(low, first), max(high, last))
            out["transfer_bytes"][row] += proxy.size_bytes
            continue
        for name, begin, end in _STEP_WAITS:
            if times.get(begin, 0) > 0 and times.get(end, 0) > 0:
                out[name][row] += max(times[end] - times[begin], 0)
    for row, (first, last) in spans.items():
        out["network_ns"][row] = last - first
    return out


#: Waits of one step of a proxy: (column, stamp at its begin, stamp at its end).
_STEP_WAITS = (
    ("gpu_wait_ns", "send_gpu_wait_ts", "send_peer_wait_ts"),
    ("peer_wait_ns", "send_peer_wait_ts", "send_wait_ts"),
    ("wire_wait_ns", "send_wait_ts", "proxy_step_stop_ts"),
    ("wire_wait_ns", "recv_wait_ts", "recv_flush_wait_ts"),
    ("gpu_wait_ns", "recv_gpu_wait_ts", "proxy_step_stop_ts"),
)


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
