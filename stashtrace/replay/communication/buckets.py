"""Send gradients in buckets of another size: remake the transfers of a graph's backward passes.

    backward   |--- 5 ---|--- 4 ---|--- 3 ---|--- 2 ---|--- 1 ---|
    recorded             [5] [4]       [3]       [2]       [1]       one transfer per message
    merged                             [ 5 4 3 ]           [2 1]     begins when the last of its gradients is ready

A bucket of DistributedDataParallel closes with the gradient that fills it. Where the run records its gradients, new
buckets may divide its messages too. When the inside of a message was ready was not recorded: between the ready time of
the message before it and that of the message itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Bools, Int64, equal_pairs, int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.calibration.robust_line import Floats, least_absolute
from stashtrace.errors import MissingDataError, guarded
from stashtrace.replay.communication.communication_model import LinkFit, links_of, ranked_buckets, tells_bytes
from stashtrace.replay.communication.messages import WRAPPER, DdpFacts, Messages, gradient_messages, shows_ddp
from stashtrace.replay.communication.overlap import are_made_of, bucket_ends, divides, merge_caps, rounded_cap
from stashtrace.replay.policy import POLICY
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.trace import Trace
from stashtrace.text.units import bytes_text

_EDGE_COLUMNS = ("source", "target", "edge_kind", "lag_ns")


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a message by its size, as far as the run shows."""

    #: (float, float); With the least and with the most possible latency; equal where messages of several sizes show the
    #: latency.
    alpha_ns: tuple[float, float]
    beta_ns_per_byte: tuple[float, float]

    def time_ns(self, sizes_bytes: Floats, *, latency: bool) -> Floats:
        """Return the time of messages of these sizes, with the least or the most latency."""
        at = int(latency)
        return self.alpha_ns[at] + self.beta_ns_per_byte[at] * sizes_bytes


@dataclass(frozen=True, slots=True)
class Buckets:
    """The messages of a run's backward passes in its graph, by pass, then by ready time."""

    #: Transfer of each message.
    node: Int64
    #: First message of each pass, then the number of all messages.
    first: Int64
    #: When each message was ready since its pass began.
    ready_ns: Floats
    bytes: Floats
    cost: Cost
    ddp: DdpFacts
    #: Values of ``bucket_cap_mb`` that may be better than that of the run.
    candidates_mib: tuple[float, ...]


def gradient_buckets(trace: Trace, graph: Graph) -> Buckets:
    """Find the buckets of DistributedDataParallel in a run and in its graph.

    Raises MissingDataError if the run sends no such buckets, or they cannot be distinguished from its other
    messages.
    """
    messages = gradient_messages(trace)
    rows = np.flatnonzero((messages.backward >= 0) & messages.within)
    _require_buckets(trace, messages, rows)
    rows = rows[order_by(messages.rank[rows], messages.backward[rows], messages.ready_ns[rows])]
    node = _nodes(trace, graph, messages, rows)
    first = GroupBy.runs(messages.rank[rows], messages.backward[rows]).bounds
    calls = np.isin(graph.target, node) & (graph.edge_kind == EdgeKind.MEMBER)
    if (graph.resource[graph.source[calls]] != Resource.STEP_THREAD).any():
        raise MissingDataError(
            "bucket_mb cannot be predicted: devices send the messages of this run",
            hint="it is predicted for runs whose steps are those of their hosts",
        )
    links, of = links_of(messages, rows)
    return Buckets(
        node=node,
        first=first,
        ready_ns=np.maximum(messages.ready_ns[rows] - messages.backward_begin_ns[rows], 0).astype(np.float64),
        bytes=messages.bytes[rows].astype(np.float64),
        cost=_cost(messages, rows, links[int(of[rows[0]])]),
        ddp=messages.ddp,
        candidates_mib=_candidates(messages, rows[: first[1]]),
    )


def buckets_if_any(trace: Trace, graph: Graph, unsaid: list[str]) -> Buckets | None:
    """Return the buckets of a run; None if it sends none, or by a fault of ours, for which ``unsaid`` gets a line."""

    def found() -> Buckets | None:
        with contextlib.suppress(MissingDataError):
            return gradient_buckets(trace, graph) if shows_ddp(trace) else None
        return None

    return guarded("other sizes of buckets", found, unsaid.append)


def _require_buckets(trace: Trace, messages: Messages, rows: Int64) -> None:
    """Raise MissingDataError if another ``bucket_cap_mb`` would not change these messages."""
    problem = "bucket_mb cannot be predicted"
    if not shows_ddp(trace):
        raise MissingDataError(
            f"{problem}: the run shows no {WRAPPER}", hint="buckets are an option of torch's DistributedDataParallel"
        )
    if not len(rows):
        raise MissingDataError(
            f"{problem}: no message was sent inside a counted backward pass",
            hint="`stashtrace analyze collectives RUN` shows what was sent",
        )
    ops = sorted(set(messages.op[rows].tolist()))
    if ops != ["all_reduce"]:
        raise MissingDataError(
            f"{problem}: backward passes send {', '.join(ops)}, not only all-reduced buckets",
            hint="sharded and tensor-parallel models have no bucket_cap_mb",
        )
    if len(GroupBy(messages.rank[rows], messages.lane[rows])) > len(np.unique(messages.rank[rows])):
        raise MissingDataError(
            f"{problem}: a backward pass uses several communicators",
            hint="the buckets of one model cannot be distinguished from the messages of the others",
        )
    if messages.blocking[rows].any():
        raise MissingDataError(
            f"{problem}: callers wait for messages inside backward, as SyncBatchNorm does",
            hint="these messages cannot be distinguished from buckets",
        )


def _nodes(trace: Trace, graph: Graph, messages: Messages, rows: Int64) -> Int64:
    """Return the transfer of each message, by communicator and number."""
    table = TraceIndex(trace).trace.collectives
    transfers = np.flatnonzero((graph.resource == Resource.TRANSFER) & (graph.row >= 0))
    known = GroupBy(*(table[name][graph.row[transfers]] for name in ("group_hash", "sequence")))
    at = known.find(messages.group_hash[rows].astype(np.uint64), messages.sequence[rows])
    if (at < 0).any():
        raise MissingDataError(
            f"bucket_mb cannot be predicted: {int((at < 0).sum())} of {len(at)} messages are not in the graph",
            hint="the ends of their transfers were not recorded on all ranks",
        )
    return transfers[known.last[at]]


def _candidates(messages: Messages, one_pass: Int64) -> tuple[float, ...]:
    """Return the best sizes by the fit of the run; without a fit, sizes with very different numbers of messages."""
    caps_by_count: dict[float, float] = {}
    for forecast in ranked_buckets(messages):
        if not forecast.split:
            caps_by_count.setdefault(forecast.messages_count, forecast.bucket_mib)
    if caps_by_count:
        return tuple(caps_by_count.values())[: POLICY.replayed_sizes_count]
    sizes, gradients = messages.bytes[one_pass].astype(np.float64), messages.ddp.gradients_bytes
    whole = gradients if are_made_of(sizes, gradients) else sizes
    caps = merge_caps(whole)
    if whole is sizes:  # of which the gradients are not known: they can be merged, not divided
        caps = caps[[not divides(sizes, cap, messages.ddp.bucket_bytes) for cap in caps.tolist()]]
    chosen = caps[
        np.unique(np.linspace(0, max(len(caps) - 1, 0), POLICY.replayed_sizes_count).round().astype(int))[: len(caps)]
    ]
    return tuple(dict.fromkeys(rounded_cap(cap, whole) for cap in chosen.tolist()))


def message_line(sizes_bytes: Floats, times_ns: Floats) -> tuple[float, float] | None:
    """Return latency and ns per byte of messages; None if their sizes are too similar to decide."""
    sized = sizes_bytes > 0
    sizes, times = sizes_bytes[sized], times_ns[sized]
    if not len(sizes) or sizes.max() < POLICY.sizes_apart_times * sizes.min():
        return None
    order = np.argsort(sizes, kind="stable")
    alpha, beta = least_absolute(sizes[order], times[order], np.ones(len(sizes)))
    return max(alpha, 0.0), max(beta, 0.0)


def _cost(messages: Messages, rows: Int64, link: LinkFit) -> Cost:
    """Return the cost by the fit of alpha and beta; with too few sizes for a fit, the bounds of the latency."""
    if link.fit is not None and tells_bytes(link):
        piece = link.fit.pieces[0]
        return Cost((piece.alpha_ns,) * 2, (piece.beta_ns_per_byte,) * 2)
    line = message_line(messages.bytes[rows].astype(np.float64), messages.link_ns[rows]) if link.fit is None else None
    if line is not None and line[1] > 0:
        return Cost((line[0],) * 2, (line[1],) * 2)
    worked, moved = float(messages.link_ns[rows].sum()), float(messages.bytes[rows].sum())
    most = min(min(link.points.median_ns), worked / len(rows))
    return Cost((0.0, most), (worked / moved, (worked - len(rows) * most) / moved))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """New buckets of all passes that change.

    ``message`` has the last gradient of each bucket, and the bucket is ready ``shift_ns`` before that message.
    ``of_message`` is the bucket in which each message of ``changed`` ends. ``last`` marks the buckets that end a
    pass.
    """

    message: Int64
    bytes: Floats
    work_ns: Floats
    shift_ns: Floats
    last: Bools
    changed: Int64
    of_message: Int64


def regrouped(graph: Graph, buckets: Buckets, bucket_mib: float, *, latency: bool) -> Graph:
    """Return the graph with the gradients of its backward passes in buckets of another size.

    ``bucket_mib``: ``bucket_cap_mb``, in MiB. ``latency``: messages have the most possible latency, and gradients
    inside a message are ready with its last one; else they have the least latency, and these gradients are ready with
    the message before.
    """
    pieces = _pieces(graph, buckets, bucket_mib, latency=latency)
    if not len(pieces.message):
        return graph
    count = len(graph)
    made = count + np.arange(len(pieces.message))
    old = buckets.node[pieces.changed]
    base = buckets.node[pieces.message]
    ready = np.rint(graph.begin_ns[base] - pieces.shift_ns).astype(np.int64)
    work = np.rint(pieces.work_ns).astype(np.int64)

    columns: dict[str, Any] = {n: np.concatenate([c, c[base]]) for n, c in graph.node_columns().items()}
    columns["begin_ns"][count:], columns["end_ns"][count:] = ready, ready + work
    columns["moved_bytes"][count:], columns["gap_ns"][count:] = np.rint(pieces.bytes), 0
    # The old transfers become moments.
    columns["end_ns"][old] = columns["begin_ns"][old]
    columns["moved_bytes"][old], columns["gap_ns"][old], columns["kind"][old] = -1, 0, StallKind.OTHER
    columns |= _edges(graph, buckets, pieces, made)
    facts = None if graph.facts is None else graph.facts.with_copies(base)
    return replace(graph, facts=facts, **columns)


def _divides(bucket_mib: float, sizes: Floats) -> MissingDataError:
    return MissingDataError(
        f"bucket_mb={bucket_mib:g} would divide messages of up to {bytes_text(sizes.max())}, and the run does not"
        " record their gradients",
        hint="record it again, which notes the gradients of one DistributedDataParallel, or with smaller buckets",
    )


def _pieces(graph: Graph, buckets: Buckets, bucket_mib: float, *, latency: bool) -> _Pieces:
    cap_bytes, gradients, recorded_bytes = bucket_mib * 2**20, buckets.ddp.gradients_bytes, buckets.ddp.bucket_bytes
    parts: list[tuple[Int64, Floats, Floats, Floats]] = []
    changed, of_message, made = [], [], 0
    for begin, end in zip(buckets.first[:-1].tolist(), buckets.first[1:].tolist(), strict=True):
        sizes, ready = buckets.bytes[begin:end], buckets.ready_ns[begin:end]
        sent = np.cumsum(sizes)
        if not are_made_of(sizes, gradients) and divides(sizes, cap_bytes, recorded_bytes):
            raise _divides(bucket_mib, sizes)
        ends, _ = bucket_ends(sizes, cap_bytes, gradients_bytes=gradients, recorded_bytes=recorded_bytes)
        if len(ends) == len(sent) and (ends == sent).all():
            continue
        new_sizes = np.diff(np.append(0.0, ends))
        message = np.searchsorted(sent, ends, side="left")
        latest = np.maximum.accumulate(ready)
        inside = ends < sent[message]
        since = np.append(0.0, latest[:-1])
        shift = np.where(inside & ~np.bool_(latency), (latest - since)[message], 0.0)
        # The fit is over all messages; this pass may have had a faster or a slower link.
        measured = graph.work_ns[buckets.node[begin:end]].sum()
        pace = measured / max(float(buckets.cost.time_ns(sizes, latency=latency).sum()), 1.0)
        work = pace * buckets.cost.time_ns(new_sizes, latency=latency)
        parts.append((begin + message, new_sizes, work, shift))
        changed.append(np.arange(begin, end))
        of_message.append(made + np.searchsorted(ends, sent, side="left"))
        made += len(new_sizes)
    if not parts:
        none = int64([])
        return _Pieces(none, np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool), none, none)
    message, sizes, work, shift = (np.concatenate(column) for column in zip(*parts, strict=True))
    last = np.zeros(made, dtype=bool)
    last[np.cumsum([len(part[0]) for part in parts]) - 1] = True
    return _Pieces(message, sizes, work, shift, last, np.concatenate(changed), np.concatenate(of_message))


def _edges(graph: Graph, buckets: Buckets, pieces: _Pieces, made: Int64) -> dict[str, npt.NDArray[np.integer]]:
    """Replace the edges of the old transfers by those of the new ones."""
    source, target, kind, lag = (getattr(graph, name).astype(np.int64) for name in _EDGE_COLUMNS)
    position = np.full(len(graph), -1, dtype=np.int64)  # of a transfer among those that change
    position[buckets.node[pieces.changed]] = np.arange(len(pieces.changed))
    starts = np.flatnonzero(np.append(True, pieces.last[:-1]))
    ends = np.flatnonzero(pieces.last)
    pass_of_message = np.searchsorted(ends, pieces.of_message)

    # Each bucket is ready when the message in which it ends was, or earlier by its shift.
    member = np.flatnonzero(kind == EdgeKind.MEMBER)
    member = member[np.argsort(target[member], kind="stable")]
    bucket, places = equal_pairs(buckets.node[pieces.message], target[member])
    at = member[places]
    ready = (
        source[at],
        made[bucket],
        np.full(len(at), int(EdgeKind.MEMBER)),
        lag[at] - np.rint(pieces.shift_ns[bucket]),
    )

    # Buckets follow one another in the communicator's queue, before what followed the pass.
    queue = np.flatnonzero(kind == EdgeKind.QUEUE)
    first_of_pass = np.full(len(graph), -1, dtype=np.int64)
    changed_first = np.flatnonzero(np.append(True, pass_of_message[1:] != pass_of_message[:-1]))
    changed_last = np.append(changed_first[1:], len(pieces.changed)) - 1
    first_of_pass[buckets.node[pieces.changed[changed_first]]] = np.arange(len(changed_first))
    before = queue[first_of_pass[target[queue]] >= 0]
    inner = np.flatnonzero(~pieces.last)
    queued_source = np.concatenate([source[before], made[inner], made[ends]])
    queued_target = np.concatenate(
        [made[starts[first_of_pass[target[before]]]], made[inner + 1], buckets.node[pieces.changed[changed_last]]]
    )
    queued = (
        queued_source,
        queued_target,
        np.full(len(queued_source), int(EdgeKind.QUEUE)),
        np.zeros(len(queued_source)),
    )

    # A wait for a message becomes a wait for the bucket in which it ends. A wait before the last message was sent was
    # not for the gradients but for a busy core, and is gone with the message.
    release = np.flatnonzero((kind == EdgeKind.RELEASE) & (position[source] >= 0))
    place = position[source[release]]
    last_node = buckets.node[pieces.changed[changed_last]]
    called = _calls(graph, last_node)
    of_pass = pass_of_message[place]
    waits = graph.begin_ns[target[release]] >= called[of_pass, np.maximum(graph.rank[target[release]], 0)]
    waiting = release[waits]
    let_go = (
        made[pieces.of_message[place[waits]]],
        target[waiting],
        np.full(len(waiting), int(EdgeKind.RELEASE)),
        lag[waiting],
    )
    final = _final_waits(graph, last_node, made[ends], let_go[0], let_go[1], called)

    kept = np.ones(len(source), dtype=bool)
    kept[release] = False
    new = [(source[kept], target[kept], kind[kept], lag[kept]), ready, queued, let_go, final]
    whole = [np.concatenate([part[i] for part in new]) for i in range(4)]
    types = (np.int32, np.int32, np.int8, np.int64)
    return {name: values.astype(of) for name, values, of in zip(_EDGE_COLUMNS, whole, types, strict=True)}


def _calls(graph: Graph, last: Int64) -> Int64:
    """Return when each rank called the last message of each pass; rows are passes, columns are ranks."""
    ranks = int(graph.rank.max(initial=0)) + 1
    called = np.full((len(last), ranks), np.iinfo(np.int64).max)
    number = np.full(len(graph), -1, dtype=np.int64)
    number[last] = np.arange(len(last))
    member = np.flatnonzero((graph.edge_kind == EdgeKind.MEMBER) & (number[graph.target] >= 0))
    moment = graph.end_ns[graph.source[member]] + graph.lag_ns[member]
    called[number[graph.target[member]], np.maximum(graph.rank[graph.source[member]], 0)] = moment
    return called


def _final_waits(
    graph: Graph, last: Int64, made: Int64, source: Int64, target: Int64, called: Int64
) -> tuple[Int64, Int64, Int64, Int64]:
    """Backward ends when all buckets have arrived, also where DistributedDataParallel did not have to wait for that."""
    new_source, new_target = [int64([])], [int64([])]
    for rank in np.flatnonzero((called < np.iinfo(np.int64).max).any(axis=0)).tolist():
        cells = np.flatnonzero((graph.resource == Resource.STEP_THREAD) & (graph.rank == rank))
        if not len(cells):
            continue
        waits = np.isin(made, source[graph.rank[target] == rank])
        bare = np.flatnonzero(~waits & (called[:, rank] < np.iinfo(np.int64).max))
        at = np.searchsorted(graph.begin_ns[cells], graph.end_ns[last[bare]], side="left")
        known = at < len(cells)
        new_source.append(made[bare[known]])
        new_target.append(cells[at[known]])
    sources, targets = np.concatenate(new_source), np.concatenate(new_target)
    return sources, targets, np.full(len(sources), int(EdgeKind.RELEASE)), np.zeros(len(sources), dtype=np.int64)
