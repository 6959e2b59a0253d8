"""Imports the JSON lines of NCCL's Inspector plugin: one file a process, one line a finished operation.

Formats v4.0 to v4.2 repeat header and metadata on every line; from v4.3 on a ``dump_stats`` line carries them for the
lines after it. Only verbose files hold times, in microseconds of the host's clock; the others hold durations, which are
laid end to end before the moment at which they were written.

    verbose   call |-| return      start ...... stop        stamps of the host, noticed late by a polling thread
                              begin =============== end     the device's own duration, as late as these stamps allow
    else                  ==1== =2= ====3==== dump          durations only
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.collective_names import PER_PEER, collective_op, subgroup_hash
from stashtrace.importers.import_context import Bools, ImportContext, Int64
from stashtrace.importers.import_limits import HIGHEST, parse_json
from stashtrace.importers.source import Source
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, DeviceClock, NcclFlag, Severity
from stashtrace.schema.possible import MOST_RANKS

#: Columns of the operations as read; times are 0 where the file has none.
COLUMNS = (
    *("comm", "op", "p2p", "number", "size_bytes", "duration_ns", "peer"),
    *("dump_ns", "call_ns", "return_ns", "start_ns", "stop_ns"),
    *("channels", "timed", "algorithm", "protocol", "captured"),
)
#: Least error of a time that was laid out instead of measured.
_LAID_OUT_ERROR_NS = 1_000_000_000
#: Stamps are whole microseconds.
_STAMP_ERROR_NS = 1_000
#: Share of operations whose stamps fit their duration within the stated error.
_ERROR_QUANTILE = 99


@dataclass(frozen=True, slots=True)
class Communicator:
    """A header line: one communicator of one process, with the rank within it."""

    host: str
    pid: int
    hash: int
    name: str
    rank: int
    size: int
    nodes: int

    @property
    def title(self) -> str:
        """Name for people."""
        return self.name or f"nccl {self.hash:x}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """One line of a network proxy."""

    #: (int, bool, int); The operation: communicator, whether it is a message, its number.
    parent: tuple[int, bool, int]
    #: Whether the line is about the whole operation, not a step of it.
    whole: bool
    size_bytes: int
    #: Stamps by name.
    times_ns: Mapping[str, int]


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
    subgroups = _Subgroups(given, communicators, processes, context)
    traced = given["start_ns"] > 0
    begin, end = np.empty(len(traced), dtype=np.int64), np.empty(len(traced), dtype=np.int64)
    begin[traced], end[traced] = _times_by_stamps(given, traced)
    begin[~traced], end[~traced] = _times_by_durations(given, ~traced, processes)
    call = np.where(given["call_ns"] > 0, given["call_ns"], begin)
    size = np.array([c.size for c in communicators], dtype=np.int64)[given["comm"]]
    process_id = processes[given["comm"]]
    names = context.codes(op.name.lower() for op in CollectiveOp)
    collectives = {
        "process_id": process_id,
        "track_id": _callers(processes, context)[given["comm"]],
        "communicator_track_id": subgroups.track,
        "group_hash": subgroups.hash,
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
    }
    codes = context.codes(texts)
    details = {
        "process_id": process_id,
        "algorithm_code": codes[given["algorithm"]],
        "protocol_code": codes[given["protocol"]],
        "channels_count": given["channels"],
        "timed_count": given["timed"],
        "nccl_flags": given["captured"] * int(NcclFlag.CAPTURED),
        **_by_proxies(given, proxies),
    }
    # The key of a row is its place after sorting, so the details are sorted in the same way.
    order = np.lexsort((given["number"], call))
    context.add(
        "collectives",
        **{name: values[order] for name, values in collectives.items()},
        status_code=0,
        source_code=int(CollectiveSource.PLUGIN),
    )
    context.add(
        "collective_details",
        collective_key=np.arange(len(order)),
        **{name: values[order] for name, values in details.items()},
    )
    _clocks(given, traced, process_id, context)
    subgroups.report(given, context)


def _processes(communicators: Sequence[Communicator], context: ImportContext) -> Int64:
    """Return the process of each communicator. Its rank is that in its largest communicator: no line names another."""
    largest: dict[tuple[str, int], Communicator] = {}
    for communicator in communicators:
        key = (communicator.host, communicator.pid)
        if key not in largest or communicator.size > largest[key].size:
            largest[key] = communicator
    known = {
        key: context.process(pid=key[1], host=key[0], rank=most.rank, world_size=most.size)
        for key, most in largest.items()
    }
    return np.array([known[c.host, c.pid] for c in communicators], dtype=np.int64)


def _callers(processes: Int64, context: ImportContext) -> Int64:
    """Return the track of the unknown thread that called, by communicator."""
    for process_id in processes.tolist():
        context.tracks.describe_thread(process_id, 0, name="callers of NCCL")
    return np.array([context.tracks.thread(process_id, 0) for process_id in processes.tolist()], dtype=np.int64)


class _Subgroups:
    """Operations that are numbered together: NCCL counts per communicator and function, messages on their own."""

    def __init__(
        self,
        given: Mapping[str, Int64],
        communicators: Sequence[Communicator],
        processes: Int64,
        context: ImportContext,
    ) -> None:
        self._subgroups = GroupBy(given["comm"], np.where(given["p2p"] == 1, -1, given["op"]))
        hashes, tracks = [], []
        for row, count in zip(self._subgroups.first.tolist(), self._subgroups.sizes.tolist(), strict=True):
            communicator = communicators[given["comm"][row]]
            kind = "messages" if given["p2p"][row] else CollectiveOp(int(given["op"][row])).name.lower()
            title = f"{communicator.title} · {kind}"
            process_id = int(processes[given["comm"][row]])
            hashes.append(subgroup_hash(communicator.hash, kind))
            tracks.append(context.tracks.communicator(process_id, hashes[-1], title))
            crosses = -1 if communicator.nodes < 0 else int(communicator.nodes > 1)
            context.add_group(
                process_id,
                hashes[-1],
                title,
                locality="host count unknown" if crosses < 0 else f"NCCL counts {communicator.nodes} hosts",
                group_rank=communicator.rank,
                group_size=communicator.size,
                observed_count=count,
                crosses_hosts=crosses,
            )
        self.hash = np.array(hashes, dtype=np.uint64)[self._subgroups.number]
        self.track = np.array(tracks, dtype=np.int64)[self._subgroups.number]

    def report(self, given: Mapping[str, Int64], context: ImportContext) -> None:
        """Report the numbers that are absent between the first and the last of each subgroup."""
        numbers, subgroups = given["number"], self._subgroups
        missing = int((subgroups.max(numbers) - subgroups.min(numbers) + 1 - subgroups.sizes).clip(min=0).sum())
        if missing:
            context.lose(
                "operations_not_in_file",
                missing,
                advice="small ones (NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES), untimed ones, or those that a ring overwrote",
            )


def _times_by_stamps(given: Mapping[str, Int64], rows: Bools) -> tuple[Int64, Int64]:
    """Return begin and end by stamps: both were noticed late, and the duration is the device's."""
    start, stop, duration = (given[name][rows] for name in ("start_ns", "stop_ns", "duration_ns"))
    duration = np.where(duration > 0, duration, np.maximum(stop - start, 0))
    begin = np.minimum(start, np.where(stop > 0, stop - duration, start))
    begin = np.maximum(begin, np.minimum(given["call_ns"][rows], start))
    return begin, begin + duration


def _times_by_durations(given: Mapping[str, Int64], rows: Bools, processes: Int64) -> tuple[Int64, Int64]:
    """Return begin and end of rows with a duration only: one after the other, each before its line was written."""
    duration, written = given["duration_ns"][rows], given["dump_ns"][rows]
    owner = processes[given["comm"][rows]]
    begin, end = np.empty(len(duration), dtype=np.int64), np.empty(len(duration), dtype=np.int64)
    for process in np.unique(owner).tolist():
        at = np.flatnonzero(owner == process)
        passed = np.cumsum(duration[at])
        latest = np.minimum.accumulate((written[at] - passed)[::-1])[::-1]
        end[at] = passed + latest
        begin[at] = end[at] - duration[at]
    return begin, end


def _clocks(given: Mapping[str, Int64], traced: Bools, process_id: Int64, context: ImportContext) -> None:
    """Add the error of the times, so that ranks are not ordered by times that were laid out."""
    for process in np.unique(process_id).tolist():
        chosen = process_id == process
        seen, laid = chosen & traced, chosen & ~traced
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
    """Return what the network's proxies did for each operation; -1 where none was seen.

    Their lines name the operation by a number that NCCL counts per function. Numbers that several functions share are
    left out.
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
        row, times = rows.get(proxy.parent, -1), proxy.times_ns
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


# The lines of a file.

_BODIES = ("coll_perf", "p2p_perf", "proxy_trace")
_MARKS = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')
#: A record of this plugin has about 500 bytes, and 200 for each of at most 64 channels.
_LONGEST_BYTES = 1 << 20
_KNOWN_VERSIONS = ("v4.", "v5.")


def sniff(head: bytes, path: Path) -> bool:
    """Return True for files of the Inspector."""
    return head.lstrip()[:1] == b"{" and any(mark in head for mark in _MARKS)


def load(source: Source, context: ImportContext) -> None:
    """Read the operations of one process."""
    log = _Log()
    for lines, too_long_count in source.lines(_LONGEST_BYTES):
        log.broken += too_long_count
        if source.cut_reason is None:  # else this is the line that the cut tore
            for line in lines:
                log.take(line)
    log.finish()
    if not log.columns["comm"]:
        raise ImporterError(
            f"{source.path} holds no operation of NCCL's Inspector",
            hint="it writes those above NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192) when a communicator is destroyed",
        )
    add_operations(log.columns, log.communicators, log.proxies, log.texts, context)
    _report(log, source, context)


@dataclass(slots=True)
class _Log:
    """Content of the lines so far."""

    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in COLUMNS})
    communicators: list[Communicator] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    #: v4.3: lines of each kind that the last ``dump_stats`` announced and that have not come.
    left: dict[str, int] = field(default_factory=dict)
    #: Lines that are damaged, that no header announced, and that were announced and did not come.
    broken: int = 0
    orphans: int = 0
    missing: int = 0
    overwritten: dict[int, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=lambda: [""])
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _communicator: int = -1
    _dump_ns: int = 0

    def take(self, line: bytes) -> None:
        """Add a line, or count it as broken."""
        if not line or line.isspace():
            return
        try:
            self._take(parse_json(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            self.broken += 1

    def _take(self, record: Any) -> None:
        """Add a record; raise one of the errors above if it is none of this plugin's."""
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
        """Count the lines that were announced and did not come."""
        self.missing += sum(self.left.values())
        self.left = {}

    def _enter(self, header: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.versions.add(str(metadata.get("inspector_output_format_version", "")))
        self._dump_ns = 1000 * int(metadata.get("dump_timestamp_us", 0))
        host, pid = str(metadata.get("hostname", "")), int(metadata.get("pid", 0))
        key = (host, pid, str(header["id"]), int(header["rank"]))
        if key not in self._known:
            name = str(header.get("comm_name", ""))
            communicator = Communicator(
                host=host,
                pid=pid,
                hash=int(key[2], 16) % (1 << 64),
                name="" if name == "unknown" else name,
                rank=key[3],
                size=int(header["n_ranks"]),
                nodes=int(header.get("nnodes", -1)),
            )
            size, nodes = communicator.size, communicator.nodes
            if not (0 <= key[3] < size <= MOST_RANKS and -1 <= nodes < MOST_RANKS and 0 <= pid < HIGHEST):
                raise ValueError("a header that no communicator has")
            self._known[key] = len(self.communicators)
            self.communicators.append(communicator)
        self._communicator = self._known[key]

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
        if max(values) >= HIGHEST or min(values) < -1:
            raise ValueError("a number that no operation has")
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def _proxy(self, body: dict[str, Any]) -> None:
        times = {str(name): 1000 * int(value) for name, value in (body.get("event_trace_ts") or {}).items()}
        size = int(body.get("trans_size_bytes", 0))
        if max([size, *times.values()]) >= HIGHEST or min([size, *times.values()]) < 0:
            raise ValueError("a number that no transfer has")
        parent = (self._communicator, body.get("parent_type") == "p2p", int(body.get("parent_sn", -1)))
        self.proxies.append(Proxy(parent, body.get("record_type") == "proxy_op", size, times))

    def _text(self, text: object) -> int:
        known = "" if text is None or text == "unknown" else str(text)
        if known not in self.texts:
            self.texts.append(known)
        return self.texts.index(known)


def _report(log: _Log, source: Source, context: ImportContext) -> None:
    name = source.path.name
    if source.cut_reason is not None:
        context.lose("file_cut", advice=f"{name} ends in the middle of its compressed data")
    ring = "set NCCL_INSPECTOR_DUMP_COLL_RING_SIZE higher or the dump interval shorter"
    for reason, count, advice in (
        ("broken_lines", log.broken, f"{name} has lines that are cut or are not records"),
        ("lines_without_header", log.orphans, f"{name} has records whose dump_stats line is not in the file"),
        ("announced_records_missing", log.missing, f"{name} holds less than its dump_stats lines announce"),
        ("ring_overwritten", sum(log.overwritten.values()), ring),
    ):
        if count:
            context.lose(reason, count, advice=advice)
    unknown = sorted(v for v in log.versions if not v.startswith(_KNOWN_VERSIONS) and v)
    if unknown:
        context.doubt_newer(f"{name} is of format {unknown[0]}", "v4.3")
    context.say("nccl_inspector.format", ", ".join(sorted(v for v in log.versions if v)) or "unknown")
