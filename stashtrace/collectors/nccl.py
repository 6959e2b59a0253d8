"""Decodes NCCL's operations: calls, tasks of the profiler plugin, and the timing events around calls.

There is one row for each call. Its times on the device are the plugin's stamps of the kernel, else the events of the
bracket whose correlation_id is the call (in a group: the bracket of its stream). Tasks of the plugin without a call
have separate rows. ``loading.join_collectives`` then joins the rows with torch's calls.

A row belongs to a communicator, or to a *subgroup* of it: messages of one pair of ranks, and replays of graphs, have
separate numbers, because other ranks do not take part in these.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext, Int64, Subgroup, for_each
from stashtrace.schema import kinds
from stashtrace.schema.groupby import Bools, GroupBy
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("nccl_comm", "nccl_call", "nccl_task", "nccl_channel", "nccl_proxy", "device_bracket", "stream_info")
TABLES = ("collectives", "collective_details", "groups", "metadata", "tracks")

#: ncclInProgress: launched later by another thread, which is not a failure.
_IN_PROGRESS = 7
_NAMES = {op: "nccl" + "".join(w.capitalize() for w in op.name.split("_")) for op in kinds.CollectiveOp} | {
    kinds.CollectiveOp.ALL_TO_ALL: "ncclAlltoAll",
    kinds.CollectiveOp.RECEIVE: "ncclRecv",
}


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``collectives``, ``collective_details`` and ``groups``; make a track per communicator."""
    context.name_streams(raw)
    tables: dict[str, dict[str, Any]] = {}
    groups = _groups(raw, context)
    timed = time_rows(raw, context)
    if timed is not None:
        tables["collectives"] = _collectives(timed, groups, context)
        tables["collective_details"] = _details(timed, context)
        if timed.check:
            tables["metadata"] = {
                "process_id": context.process_id,
                "key_code": np.array([context.strings.code("nccl.events_beside_plugin")]),
                "value_code": np.array([context.strings.code(timed.check)]),
            }
    if groups:
        tables["groups"] = _group_columns(groups, context)
    return context.tables(**tables)


@dataclass(slots=True)
class _Communicator:
    """What a process knows of a communicator; numbers are -1 if unknown."""

    name: str
    size: int = -1
    nodes_count: int = -1
    #: Device -> rank in the communicator: a process may have one on each of its devices.
    ranks: dict[int, int] = field(default_factory=dict)

    def own_ranks(self) -> list[int]:
        """Return the process's ranks in it, [-1] if it knows none."""
        return sorted(set(self.ranks.values())) or [-1]

    def rank_on(self, device: int) -> int:
        """Return the rank of work on a device; where that is unknown, the only one there is."""
        ranks = self.own_ranks()
        return self.ranks.get(device, ranks[0] if len(ranks) == 1 else -1)

    def locality(self) -> tuple[int, str]:
        """Whether its traffic leaves a host, as ``crosses_hosts`` has it, and the evidence."""
        if self.size == 1:
            return 0, "one member"
        if self.nodes_count < 1:
            return -1, "host count unknown"
        return int(self.nodes_count > 1), f"NCCL counts {self.nodes_count} hosts"


def _groups(raw: RawProcess, context: DecodeContext) -> dict[int, _Communicator]:
    """Communicators by their hash; of one that only operations name, nothing else is known."""
    groups: dict[int, _Communicator] = {}
    rows = raw.rows("nccl_comm")
    for row in [] if rows is None else np.sort(rows, order="begin_ticks"):
        value = int(row["group_hash"])
        if value == 0:
            continue
        group = groups.setdefault(value, _Communicator(f"nccl {value:x}"))
        if row["event_code"] in (kinds.CommEvent.FINALIZE, kinds.CommEvent.DESTROY, kinds.CommEvent.ABORT):
            continue
        group.name = context.text(row["name_id"]) or group.name
        if row["group_rank"] >= 0:
            group.ranks[int(row["device_index"])] = int(row["group_rank"])
        group.size = int(row["group_size"]) if row["group_size"] >= 0 else group.size
        group.nodes_count = int(row["nodes_count"]) if row["nodes_count"] >= 0 else group.nodes_count
    for name in ("nccl_call", "nccl_task"):
        rows = raw.rows(name)
        for value in [] if rows is None else np.unique(rows["group_hash"]).tolist():
            groups.setdefault(value, _Communicator(f"nccl {value:x}"))
    return groups


def _group_columns(groups: dict[int, _Communicator], context: DecodeContext) -> dict[str, Any]:
    """A row for each rank of the process. Members are global ranks: ``loading`` fills them, from all processes."""
    code = context.strings.code
    rows = [(value, group, rank) for value, group in groups.items() for rank in group.own_ranks()]
    listed = [group for _, group, _ in rows]
    return {
        "process_id": context.process_id,
        "rank": context.rank,
        "group_hash": np.array([value for value, _, _ in rows], dtype=np.uint64),
        "name_code": context.strings.codes(group.name for group in listed),
        "backend_code": code("nccl"),
        "members_code": code(""),
        "group_rank": [rank for _, _, rank in rows],
        "group_size": [group.size for group in listed],
        "observed_count": -1,
        "backend_count": -1,
        "crosses_hosts": [group.locality()[0] for group in listed],
        "locality_code": context.strings.codes(group.locality()[1] for group in listed),
    }


def _collectives(timed: Timed, groups: dict[int, _Communicator], context: DecodeContext) -> dict[str, Any]:
    group, sequence, peer = _number(timed, groups, context)

    def communicator(value: int) -> int:
        return context.communicator_track(value, groups[value].name if value in groups else f"nccl {value:x}")

    failed = ((timed.flags & kinds.NcclFlag.FAILED) != 0) | ~np.isin(timed.status, (0, _IN_PROGRESS))
    known = timed.device_begin_ns >= 0
    names = context.strings.codes(_NAMES[op] for op in kinds.CollectiveOp)
    return {
        "collective_key": np.arange(len(timed), dtype=np.int64),
        "process_id": context.process_id,
        "rank": context.rank,
        "track_id": timed.track_id,
        "communicator_track_id": for_each(group, communicator),
        "group_hash": group,
        "sequence": sequence,
        "op_code": timed.op,
        "name_code": names[np.where(timed.op < len(names), timed.op, 0)],
        "message_bytes": timed.message_bytes,
        "peer_rank": peer,
        "collective_flags": 0,
        "element_code": 0,
        "call_ns": timed.call_ns,
        "return_ns": timed.return_ns,
        "begin_ns": timed.device_begin_ns,
        "end_ns": timed.device_end_ns,
        "status_code": np.where(failed, 1, np.where(known, 0, kinds.UNSEEN_STATUS)),
        "source_code": timed.source,
        "device_begin_ns": timed.device_begin_ns,
        "device_end_ns": timed.device_end_ns,
        "stream_track_id": timed.stream_track_id,
    }


def _details(timed: Timed, context: DecodeContext) -> dict[str, Any]:
    return {
        "collective_key": np.arange(len(timed), dtype=np.int64),
        "process_id": context.process_id,
        "algorithm_code": context.codes(timed.algorithm_id),
        "protocol_code": context.codes(timed.protocol_id),
        "channels_count": timed.channels_count,
        "timed_count": timed.timed_count,
        "nccl_flags": timed.flags,
        "batch_key": timed.batch_id,
        **timed.proxies,
        **timed.channels,
    }


def subgroup_hash(group_hash: int, *parts: object) -> int:
    """Hash of a subgroup, the same on every rank."""
    text = "\0".join(map(str, (group_hash, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _number(
    timed: Timed, groups: dict[int, _Communicator], context: DecodeContext
) -> tuple[npt.NDArray[np.uint64], Int64, Int64]:
    """(group or subgroup, number in it, peer in it) of each row, so that equal ones are one operation on every rank.

    NCCL's numbers count messages too, which differ between ranks, so messages are taken out again. Numbers of
    collectives are not counted again: lost rows leave a gap and shift nothing.
    """
    devices = GroupBy(timed.group_hash, timed.device)
    ranks = devices.map(lambda value, device: groups[value].rank_on(device))
    communicators = GroupBy(timed.group_hash, ranks)
    hashes, comm = communicators.keys[0], communicators.number
    # Puts and signals (OTHER) go to one rank, too, and wake whoever waits for them.
    message = np.isin(timed.op, (*kinds.MESSAGES, kinds.CollectiveOp.OTHER))
    order = np.lexsort((timed.call_ns, timed.sequence, comm))
    before: Int64 = np.cumsum(message[order]) - message[order]
    first = np.searchsorted(comm[order], comm[order])
    sequence = timed.sequence.copy()
    sequence[order] -= before - before[first]

    # Subgroups: 0 the communicator itself, 1 replays of graphs, 2 tasks whose call was not seen among calls that were,
    # 3 one-sided operations, from 4 on the pairs of ranks that exchange messages.
    has_calls = communicators.any(timed.called)
    replayed = (timed.flags & kinds.NcclFlag.REPLAYED) != 0
    pair = np.isin(timed.op, kinds.MESSAGES) & timed.called & (ranks >= 0) & (timed.peer >= 0)
    sends = timed.op == kinds.CollectiveOp.SEND
    source, target = np.where(sends, ranks, timed.peer), np.where(sends, timed.peer, ranks)
    subgroup = np.where(pair, 4 + 2 * timed.peer + sends, np.where(replayed, 1, 0))
    subgroup = np.where(timed.called & (timed.op == kinds.CollectiveOp.OTHER), 3, subgroup)
    subgroup = np.where(~timed.called & ~replayed & (has_calls[comm] | message), 2, subgroup)
    peer = np.where(pair, sends.astype(np.int64), timed.peer)

    counted = (subgroup > 0) | ~timed.called
    key = comm * (int(subgroup.max()) + 1) + subgroup
    chosen = np.flatnonzero(counted)
    chosen = chosen[np.lexsort((timed.sequence[chosen], timed.call_ns[chosen], key[chosen]))]
    sequence[chosen] = np.arange(len(chosen)) - np.searchsorted(key[chosen], key[chosen])

    group = hashes[comm].astype(np.uint64)
    subgroups = GroupBy(key)
    named = group[subgroups.first]
    for at, row in enumerate(subgroups.first.tolist()):
        base, number = int(group[row]), int(subgroup[row])
        if number:
            ends = (int(source[row]), int(target[row])) if number > 3 else ()
            kind = ("", "graph replays", "calls unseen", "one-sided", "messages")[min(number, 4)]
            value = subgroup_hash(base, kind, *ends)
            context.subgroups[value] = Subgroup(base, kind, ends)
            named[at] = value
    return named[subgroups.number], sequence, peer


# When operations ran on the device: brackets, tasks of the plugin and its proxies are joined with the calls.
#
# All work is on whole columns; a run has hundreds of thousands of rows.

#: A kernel that is outside the events around its call by more than this and the errors of both clocks is another one.
_STRAY_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Timed:
    """A row for each call, then for each task without a call; columns as in ``collectives``, ``collective_details``."""

    call_ns: Int64
    return_ns: Int64
    track_id: Int64
    stream_track_id: Int64
    #: -1 if unknown.
    device: Int64
    group_hash: npt.NDArray[np.uint64]
    sequence: Int64
    message_bytes: Int64
    peer: Int64
    op: Int64
    flags: Int64
    status: Int64
    batch_id: Int64
    #: False for a task without a call.
    called: Bools
    source: Int64
    device_begin_ns: Int64
    device_end_ns: Int64
    algorithm_id: Int64
    protocol_id: Int64
    channels_count: Int64
    timed_count: Int64
    proxies: dict[str, Int64]
    channels: dict[str, Int64]
    #: How events and plugin differ where both timed a call, for the metadata; empty if there is no such call.
    check: str

    def __len__(self) -> int:
        return len(self.call_ns)


def time_rows(raw: RawProcess, context: DecodeContext) -> Timed | None:
    """All operations of a process, None if there are none."""
    calls, tasks = raw.rows("nccl_call"), raw.rows("nccl_task")
    if calls is None and tasks is None:
        return None
    calls = _empty("nccl_call") if calls is None else calls[np.argsort(calls["call_ticks"], kind="stable")]
    tasks = _empty("nccl_task") if tasks is None else tasks
    replayed = (tasks["nccl_flags"] & kinds.NcclFlag.REPLAYED) != 0
    of_call = np.where(replayed, -1, positions(calls["call_id"], tasks["call_id"]))
    alone = np.flatnonzero(of_call < 0)
    owner = of_call.copy()
    owner[alone] = len(calls) + np.arange(len(alone))
    lone = tasks[alone]
    count = len(calls) + len(alone)

    def joined(of_calls: npt.NDArray[Any], of_tasks: Any) -> Int64:
        return np.concatenate([of_calls.astype(np.int64), np.broadcast_to(of_tasks, len(lone)).astype(np.int64)])

    plugin = _Plugin(tasks, owner, count, context)
    call_ns = joined(context.to_ns(calls["call_ticks"]), context.to_ns(lone["begin_ticks"]))
    return_ns = joined(context.to_ns_or_unseen(calls["return_ticks"]), -1)
    events_begin, events_end, launched = (
        np.append(times, np.full(len(lone), -1)) for times in _events(calls, raw, context)
    )
    stray = _stray(plugin, events_begin, events_end, context)
    by_plugin = (plugin.begin_ns >= 0) & ~stray
    # The kernel starts when the call launches it, if nothing is before it on the stream: near the call's return, though
    # not always after it (``loading.clocks.meetings`` allows for that). If it does not block: when that was seen.
    entered = np.minimum(np.maximum(events_begin, np.maximum(return_ns, launched)), events_end)
    begin = np.where(by_plugin, plugin.begin_ns, np.where(events_begin >= 0, entered, -1))
    # Who timed it, or for an untimed one who saw it.
    source = joined(calls["source_code"], kinds.CollectiveSource.PLUGIN)
    source[(begin >= 0) & ~by_plugin] = int(kinds.CollectiveSource.EVENTS)
    source[by_plugin] = int(kinds.CollectiveSource.PLUGIN)
    return Timed(
        call_ns=call_ns,
        return_ns=return_ns,
        track_id=joined(context.caller_tracks(calls["tid"]), context.track(context.pid) if len(lone) else 0),
        stream_track_id=joined(context.stream_tracks(calls["stream_key"]), -1),
        device=joined(_devices(calls["stream_key"], raw), -1),
        group_hash=np.concatenate([calls["group_hash"], lone["group_hash"]]),
        sequence=joined(calls["sequence"], 0),
        message_bytes=joined(calls["message_bytes"], 0),
        peer=joined(calls["peer_rank"], -1),
        op=joined(calls["op_code"], lone["op_code"]),
        flags=joined(calls["nccl_flags"], 0) | plugin.flags,
        status=joined(calls["status_code"], 0),
        batch_id=joined(calls["batch_id"], 0),
        called=np.arange(count) < len(calls),
        source=np.maximum(source, int(kinds.CollectiveSource.EVENTS)),
        device_begin_ns=begin,
        device_end_ns=np.where(by_plugin, plugin.end_ns, events_end),
        algorithm_id=plugin.algorithm_id,
        protocol_id=plugin.protocol_id,
        channels_count=plugin.channels_count,
        timed_count=plugin.timed_count,
        proxies=_proxies(raw, tasks, owner, count, context),
        channels=_channels(raw, tasks, owner, count),
        check=_check(by_plugin, plugin, events_begin, events_end),
    )


def positions(ids: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Int64:
    """Index in ``ids`` of each wanted value, -1 where there is none or the value is 0."""
    return np.where(wanted != 0, GroupBy(ids).row_of(wanted), -1)


def _empty(name: str) -> npt.NDArray[np.void]:
    from stashtrace.format.project import current_layouts

    return np.empty(0, dtype=current_layouts()[name].dtype)


class _Plugin:
    """The plugin's tasks, summed over the tasks of each row."""

    def __init__(self, tasks: npt.NDArray[np.void], owner: Int64, count: int, context: DecodeContext) -> None:
        timed = (tasks["begin_device_ns"] >= 0) & (tasks["end_device_ns"] >= 0) & (tasks["timed_count"] > 0)
        begin, end = (
            context.device_ns(tasks["device_index"][timed], kinds.DeviceClock.GLOBALTIMER, tasks[name][timed])
            for name in ("begin_device_ns", "end_device_ns")
        )
        placed = (begin >= 0) & (end >= begin)
        of_placed = GroupBy.numbered(owner[timed][placed], count)
        self.begin_ns = of_placed.min(begin[placed], empty=-1)
        self.end_ns = of_placed.max(end[placed], empty=-1)
        of_tasks = GroupBy.numbered(owner, count)
        self.channels_count = of_tasks.sum(tasks["channels_count"])
        self.timed_count = of_tasks.sum(tasks["timed_count"])
        self.flags = of_tasks.bits(tasks["nccl_flags"])
        self.algorithm_id = np.zeros(count, dtype=np.int64)
        self.protocol_id = np.zeros(count, dtype=np.int64)
        self.algorithm_id[owner] = tasks["algorithm_id"]
        self.protocol_id[owner] = tasks["protocol_id"]


def _devices(stream_keys: npt.NDArray[np.uint64], raw: RawProcess) -> Int64:
    """Device of each row's stream, -1 where it is unknown."""
    streams = raw.rows("stream_info")
    if streams is None or not len(streams):
        return np.full(len(stream_keys), -1, dtype=np.int64)
    at = positions(streams["stream_key"], stream_keys)
    return np.where(at >= 0, streams["device_index"][at], -1).astype(np.int64)


def _events(calls: npt.NDArray[np.void], raw: RawProcess, context: DecodeContext) -> tuple[Int64, Int64, Int64]:
    """(first event, second event, late launch was over) of each call's bracket, -1 where there is none or no time."""
    nothing = np.full(len(calls), -1, dtype=np.int64)
    brackets = raw.rows("device_bracket")
    if brackets is None or not len(calls):
        return nothing, nothing, nothing
    brackets = brackets[brackets["bracket_code"] == kinds.Bracket.COLLECTIVE]
    brackets = brackets[(brackets["begin_device_ns"] != -1) & (brackets["end_device_ns"] != -1)]
    brackets = brackets[(brackets["bracket_flags"] & kinds.BracketFlag.LATE_LAUNCH) == 0]
    if not len(brackets):
        return nothing, nothing, nothing
    at = positions(brackets["correlation_id"], calls["call_id"].astype(np.uint64))
    # In a group one bracket stands for all operations on its stream, and carries the id of one of them. The streams
    # of a group wait for each other, so that of another stream will do.
    first = positions(calls["call_id"].astype(np.uint64), brackets["correlation_id"])
    batch = np.where(first >= 0, calls["batch_id"][np.maximum(first, 0)], 0).astype(np.int64)
    wanted = calls["batch_id"].astype(np.int64)
    shared = GroupBy(batch, brackets["stream_key"]).row_of(wanted, calls["stream_key"])
    shared = np.where(wanted > 0, shared, -1)
    joined = positions(batch, wanted)
    at = np.where(at >= 0, at, np.where(shared >= 0, shared, joined))
    found = at >= 0
    begin, end, launched = nothing.copy(), nothing.copy(), nothing.copy()
    chosen = brackets[at[found]]
    begin[found] = context.device_ns(chosen["device_index"], kinds.DeviceClock.EVENT, chosen["begin_device_ns"])
    end[found] = context.device_ns(chosen["device_index"], kinds.DeviceClock.EVENT, chosen["end_device_ns"])
    launched[found] = context.to_ns(chosen["return_ticks"])
    usable = (begin >= 0) & (end >= begin)
    # Of a call that blocks, the bracket returns behind its second event, microseconds after the call has launched.
    late = usable & ((calls["nccl_flags"] & kinds.NcclFlag.NON_BLOCKING) != 0)
    return np.where(usable, begin, -1), np.where(usable, end, -1), np.where(late, launched, -1)


def _stray(plugin: _Plugin, begin: Int64, end: Int64, context: DecodeContext) -> Bools:
    """Rows whose stamps of the plugin are outside their events: NCCL assigned them to the wrong operation."""
    both = (plugin.begin_ns >= 0) & (begin >= 0)
    far = _STRAY_NS
    for clock in (kinds.DeviceClock.EVENT, kinds.DeviceClock.GLOBALTIMER):
        far += max((time.error_ns for (_, code), time in context.device_times.items() if code == clock), default=0)
    stray = both & ((plugin.begin_ns > end + far) | (plugin.end_ns < begin - far))
    if stray.any():
        context.add_loss(
            "nccl",
            "device_stamps_contradict",
            int(stray.sum()),
            "the plugin's times of these lie outside the events around them; the events were used",
            kinds.Severity.ERROR,
        )
    return stray


def _check(by_plugin: Bools, plugin: _Plugin, begin: Int64, end: Int64) -> str:
    both = by_plugin & (begin >= 0)
    if not both.any():
        return ""
    early, late = (plugin.begin_ns - begin)[both], (end - plugin.end_ns)[both]
    return (
        f"{int(both.sum())} operations: the first event {int(np.median(early))} ns before the kernel, "
        f"the second {int(np.median(late))} ns after it (medians)"
    )


def _proxies(
    raw: RawProcess, tasks: npt.NDArray[np.void], owner: Int64, count: int, context: DecodeContext
) -> dict[str, Int64]:
    """Times and bytes of the proxies of each row; -1 where none was seen."""
    names = ("network_ns", "transfer_bytes", "gpu_wait_ns", "peer_wait_ns", "wire_wait_ns")
    rows = raw.rows("nccl_proxy")
    out = {name: np.full(count, -1, dtype=np.int64) for name in names}
    if rows is None:
        return out
    at = positions(tasks["task_id"], rows["task_id"])
    foreign = int(np.count_nonzero(at < 0))
    if foreign:
        context.add_loss(
            "nccl",
            "proxies_of_others",
            foreign,
            "proxy operations whose collective belongs to another process or was not recorded",
            kinds.Severity.INFO,
        )
    rows, at = rows[at >= 0], at[at >= 0]
    if not len(rows):
        return out
    operations = GroupBy(owner[at])
    begin, end = context.to_ns(rows["begin_ticks"]), context.to_ns(rows["end_ticks"])
    out["network_ns"][operations.values] = union_lengths(owner[at], begin, np.maximum(end, begin))
    # Waits are sums of many steps, in ticks: the clock maps their length from any begin.
    amounts = {"transfer_bytes": rows["transfer_bytes"]} | {
        f"{name}_wait_ns": context.to_ns(rows["begin_ticks"] + rows[f"{name}_wait_ticks"]) - begin
        for name in ("gpu", "peer", "wire")
    }
    for name, values in amounts.items():
        out[name][operations.values] = operations.sum(values)
    return out


def _channels(raw: RawProcess, tasks: npt.NDArray[np.void], owner: Int64, count: int) -> dict[str, Int64]:
    """How far apart the channels of each row began and ended, by one clock of one device; -1 with less than two."""
    rows = raw.rows("nccl_channel")
    out = {name: np.full(count, -1, dtype=np.int64) for name in ("channel_skew_ns", "channel_spread_ns")}
    if rows is None:
        return out
    at = positions(tasks["task_id"], rows["task_id"])
    known = (at >= 0) & (rows["begin_device_ns"] >= 0) & (rows["end_device_ns"] >= rows["begin_device_ns"])
    rows, operations = rows[known], GroupBy(owner[at[known]])
    several = operations.sizes > 1
    for name, stamp in (("channel_skew_ns", "begin_device_ns"), ("channel_spread_ns", "end_device_ns")):
        apart = operations.max(rows[stamp]) - operations.min(rows[stamp])
        out[name][operations.values[several]] = apart[several]
    return out


def union_lengths(key: Int64, begin: Int64, end: Int64) -> Int64:
    """Length of the union of the intervals of each key, in the order of the keys."""
    order = np.lexsort((begin, key))
    key, begin, end = key[order], begin[order], end[order]
    first = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    # Keys are laid one after the other on a line, so that one running maximum serves all of them.
    sizes = np.diff(np.append(first, len(key)))
    low = np.minimum.reduceat(begin, first)
    span = np.maximum.reduceat(end, first) - low
    shift = np.repeat(np.cumsum(span) - span - low, sizes)
    begin, end = begin + shift, end + shift
    covered = np.maximum.accumulate(np.append(np.int64(0), end))[:-1]
    uncovered = np.maximum(end - np.maximum(begin, covered), 0)
    return np.add.reduceat(uncovered, first)
