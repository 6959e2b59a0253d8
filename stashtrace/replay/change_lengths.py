"""Change lengths of work: compute, launches, copies, batches, checkpoints; transfers over other links or other ranks.

A transfer is ``latency + bytes / bandwidth``. The latency is known where one kind of operation moved messages of
several sizes; else it lies between 0 and the time of the run's shortest messages, hop by hop. The time by which a
member goes on later than the first one belongs to the transfer and changes with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.calibration.fit_link import bytes_factor
from stashtrace.calibration.robust_line import robust_line
from stashtrace.errors import MissingDataError
from stashtrace.replay.changes import Change, quantity_words
from stashtrace.replay.policy import POLICY
from stashtrace.replay.scenario import Scenario, Unknowns, counted_span
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import CollectiveOp, StallKind

#: Threads of a rank that drive its steps.
_HOSTS = (Resource.STEP_THREAD, Resource.HOST)
#: Work that is multiplied: where it runs, and its kind.
_WORK = {
    "compute": ((Resource.STEP_THREAD, Resource.STREAM, Resource.DEVICE, Resource.COMPUTE_STREAM), StallKind.COMPUTE),
    "launch": ((Resource.HOST,), StallKind.LAUNCH),
    "python": (_HOSTS, StallKind.PYTHON),
    "h2d": ((Resource.STREAM,), StallKind.H2D),
    "checkpoint": (_HOSTS, StallKind.CHECKPOINT),
    "other": ((Resource.STEP_THREAD,), StallKind.OTHER),
}
#: Waits seen on devices that events timed, by the quantity that causes them.
_WAITED_FOR = {
    "h2d": (StallKind.H2D,),
    "prep": (StallKind.PREP, StallKind.HANDOFF),
    "fetch": (StallKind.FETCH,),
    "checkpoint": (StallKind.CHECKPOINT,),
}
#: Times that can be changed, in the words for a run that has none.
_NAMES = {
    "compute": "computation",
    "launch": "launch of a kernel",
    "python": "code of the loop outside the phases",
    "compile": "compilation by torch.compile",
    "objects": "collective of Python objects",
    "h2d": "copy between host and device that took time",
    "prep": "batch that took time to prepare",
    "fetch": "wait for storage while batches were made",
    "checkpoint": "checkpoint that stopped a step",
    "other": "time in which a step thread was asleep or blocked",
}


def has_time(run: Scenario, quantity: str) -> bool:
    """Return True if a run, given as the scenario without changes, has some of a time."""
    if _spent(run, quantity).any():
        return True
    graph = run.graph
    seen = np.isin(graph.kind, _WAITED_FOR.get(quantity, ()))
    if quantity == "launch" and len(graph.doubtful):
        seen |= graph.doubtful  # its host may have paced the device
    return bool((seen & (graph.resource == Resource.DEVICE) & (graph.work_ns > 0)).any())


def absent_times(graph: Graph) -> frozenset[str]:
    """Return the times that could be changed, but of which a run has none."""
    run = Scenario.of(graph, Unknowns())
    return frozenset(quantity for quantity in _NAMES if not has_time(run, quantity))


def require_time(graph: Graph, change: Change) -> None:
    """Check that a run has a time that is to change.

    Raises MissingDataError if it has none; the hint names the times that it has.
    """
    run = Scenario.of(graph, Unknowns())
    if has_time(run, change.quantity):
        return
    absent = absent_times(graph)
    known = [quantity for quantity in _NAMES if quantity not in absent]
    raise MissingDataError(
        f"{change}: no {_NAMES[change.quantity]} was recorded",
        hint=f"times that this run has: {', '.join(map(quantity_words, known))}" if known else "",
    )


def with_time(scenario: Scenario, change: Change) -> Scenario:
    """Multiply a time, or set its amount in a step (``prep`` and ``fetch``: in a batch)."""
    graph, work, fetch, lag = scenario.graph, scenario.work, scenario.fetch, scenario.lag
    spent = _spent(scenario, change.quantity)
    factor = _factor(scenario, change, spent)
    if change.quantity == "fetch":
        fetch = factor * fetch
    if change.quantity == "prep":
        # A batch that is handed over late waits for its worker, which is busy with the next one.
        handed = (graph.edge_kind == EdgeKind.BATCH) & (lag > POLICY.held_back_ns)
        lag = np.where(handed, factor * lag, lag)
    work = _of_timed_devices(scenario, change, factor, work + (factor - 1) * spent)
    return replace(scenario, work=work, fetch=fetch, lag=lag)


def _spent(scenario: Scenario, quantity: str) -> Floats:
    """Return how much of a time each node took, in ns."""
    graph, work = scenario.graph, scenario.work
    on_host = np.isin(graph.resource, _HOSTS)
    if quantity == "fetch":
        return np.where(on_host & (graph.kind == StallKind.FETCH), work, scenario.fetch)
    if quantity == "prep":
        made = on_host & (graph.kind == StallKind.PREP)
        if graph.facts is not None:  # to start workers is no part of a batch
            made &= ~graph.facts.starts
        return np.where(graph.is_batch, work - scenario.fetch, np.where(made, work, 0.0))
    none = np.zeros(len(graph), dtype=bool)
    compiles, pickles = (graph.facts.compiles, graph.facts.pickles) if graph.facts is not None else (none, none)
    if quantity in ("compile", "objects"):
        return np.where(compiles if quantity == "compile" else pickles, work, 0.0)
    if quantity in ("python", "launch"):  # the loop's code, which can be made quicker
        work = np.where(compiles | pickles, 0.0, work)
    resources, kind = _WORK[quantity]
    if quantity == "checkpoint" and (graph.edge_kind == EdgeKind.JOIN).any():
        resources = (*resources, Resource.CHECKPOINT)  # a step waited for a save by another thread
    return np.where(np.isin(graph.resource, resources) & (graph.kind == kind), work, 0.0)


def _factor(scenario: Scenario, change: Change, spent: Floats) -> float:
    """Return the factor of a time, of which each node took ``spent``."""
    if change.factor is not None:
        return change.factor
    graph, words = scenario.graph, quantity_words(change.quantity)
    counted = graph.ends_counted if graph.ends_counted.any() else np.ones(len(graph.ends), dtype=bool)
    steps = np.isin(graph.step, graph.ends_step[counted]) & ~graph.is_batch
    batches = graph.is_batch & (spent > 0)
    present = float(spent[steps].sum()) / max(int(counted.sum()), 1)
    present += float(spent[batches].mean()) if batches.any() else 0.0
    if present <= 0 and (graph.resource == Resource.DEVICE).any():
        raise MissingDataError(
            f"{change}: devices timed by events show waits, not the length of the work that causes them",
            hint=f"{words}=x0.5, or 0",
        )
    if present <= 0:
        raise MissingDataError(
            f"{change}: the steps of this run have no {words}, so it cannot be set to {change.text}",
            hint="only times that a run has can be changed",
        )
    return change.factor_from(present)


def _of_timed_devices(scenario: Scenario, change: Change, factor: float, work: Floats) -> Floats:
    """Return lengths on devices that events timed; ``luck`` 0 is the best case of what is unknown, 1 the worst.

    Where the host may have paced a device, the device may have computed or waited for launches. A wait for copies or
    batches shows only the end of work that may be longer: made faster, that work may leave no wait.
    """
    graph, luck = scenario.graph, scenario.unknowns.luck
    on_device = graph.resource == Resource.DEVICE
    if factor == 1 or not on_device.any():
        return work
    if factor > 1 and change.quantity != "compute":
        raise MissingDataError(
            f"{change} cannot be predicted for devices timed by events: they show waits, not the work that causes them",
            hint="record a few steps with `stashtrace run --kernels`",
        )
    if change.quantity in _WAITED_FOR:
        waits = on_device & np.isin(graph.kind, _WAITED_FOR[change.quantity])
        return np.where(waits, factor * scenario.work * luck, work)
    if not len(graph.doubtful):
        return work
    paced = on_device & graph.doubtful
    return np.where(paced, (factor if (luck == 0.0) == (factor < 1) else 1.0) * scenario.work, work)


LINKS = {"network": StallKind.NETWORK, "interconnect": StallKind.INTERCONNECT}
_REDUCING = (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER)
_BITS = 8


def with_link(scenario: Scenario, change: Change) -> Scenario:
    """Multiply the bandwidth or latency of a link, or set it; a latency is set for one hop.

    Raises MissingDataError if a value is set, and the hops of the transfers or the present bandwidth are unknown.
    """
    link, _, quantity = change.quantity.partition(".")
    graph = scenario.graph
    chosen = over_link(graph, link)
    fixed = latency_ns(scenario, chosen)
    if quantity == "latency":
        later = change.factor * fixed if change.factor is not None else _set_latency_ns(graph, chosen, change)
        return _set_lengths(scenario, later + (scenario.work - fixed), later, chosen)
    factor = change.factor_from(
        1.0 if change.factor is not None else _present_bits_per_s(scenario, chosen, fixed, change)
    )
    # A transfer may take longer than most of its size because of the link, or because threads wait for their turn.
    excess = np.minimum(_excess_ns(scenario, chosen), scenario.work - fixed)
    stays = excess * (scenario.unknowns.luck if factor > 1 else 1 - scenario.unknowns.luck)
    return _set_lengths(scenario, fixed + stays + (scenario.work - fixed - stays) / factor, fixed, chosen)


def over_link(graph: Graph, link: str) -> Bools:
    """Return the mask of transfers and kernels that took time to move data over a link (a key of ``LINKS``)."""
    carries = graph.is_transfer | (graph.resource == Resource.STREAM)
    return np.asarray(carries & (graph.kind == LINKS[link]) & (graph.work_ns > 0))


def _set_latency_ns(graph: Graph, chosen: Bools, change: Change) -> Floats:
    """Return the latency of each chosen transfer with the changed latency of a hop, 0 for other nodes."""
    if graph.facts is None or change.amount is None:
        raise MissingDataError(
            f"{change}: the number of hops of this run's transfers is unknown",
            hint=f"{quantity_words(change.quantity)}=x0.5",
        )
    return np.where(chosen, change.amount * _hops(graph.facts.op, graph.facts.members), 0.0)


def _present_bits_per_s(scenario: Scenario, chosen: Bools, fixed: Floats, change: Change) -> float:
    """Return the present bandwidth of a link."""
    graph = scenario.graph
    present = _bits_per_s(graph, chosen, scenario.work - fixed)
    if math.isfinite(present):
        return present
    sized = graph.facts is not None and (chosen & (graph.moved_bytes > 0) & _in_span(graph)).any()
    why = (
        "its messages do not differ enough in size, so their time may be latency alone"
        if sized
        else "the bytes that the steps of this run moved over it are unknown"
    )
    raise MissingDataError(f"{change}: {why}", hint=f"{quantity_words(change.quantity)}=x2")


def _excess_ns(scenario: Scenario, chosen: Bools) -> Floats:
    """Return by how much each chosen transfer is longer than the quick ones of its size, 0 for other nodes."""
    graph, excess = scenario.graph, np.zeros(len(scenario.work))
    nodes = np.flatnonzero(chosen & (graph.moved_bytes > 0))
    quick = of_sizes(graph.moved_bytes[nodes], scenario.work[nodes], POLICY.quick_transfers_ratio)
    excess[nodes] = np.maximum(scenario.work[nodes] - quick, 0.0)
    return excess


def of_sizes(sizes: Floats | Int64, times: Floats, ratio: float) -> Floats:
    """Return for each time the quantile of all times of its size, interpolated."""
    ascending, by_size = times[order_by(sizes, times)], GroupBy(sizes)
    first, last = by_size.bounds[:-1], by_size.bounds[1:] - 1
    place = first + ratio * (last - first)
    below = place.astype(np.int64)
    low, high = ascending[below], ascending[np.minimum(below + 1, last)]
    return np.asarray((low + (place - below) * (high - low))[by_size.number])


def compressed(scenario: Scenario) -> Scenario:
    """Move gradients of four-byte elements as two-byte ones.

    The elements of a message are not recorded and taken for four-byte ones. Converting them costs between nothing and
    the time of a slow CPU; for messages that all members have on devices, the time of a slow device.
    """
    graph = scenario.graph
    if graph.facts is None:
        raise MissingDataError("it is unknown what the transfers of this run move")
    gradients = (
        graph.is_transfer & np.isin(graph.facts.op, _REDUCING) & (graph.moved_bytes >= POLICY.least_gradient_bytes)
    )
    if not gradients.any():
        raise MissingDataError(
            "no gradients were reduced between ranks, so there is nothing to compress",
            hint="compression needs a run of several ranks",
        )
    fixed = latency_ns(scenario, gradients)
    converting = scenario.unknowns.luck * np.where(
        _on_devices(graph),
        POLICY.device_converts_ns_per_byte * graph.moved_bytes + POLICY.device_converts_ns,
        POLICY.cpu_converts_ns_per_byte * graph.moved_bytes,
    )
    shorter = _set_lengths(scenario, fixed + (scenario.work - fixed) / 2, fixed + converting, gradients)
    return shorter.with_work(np.where(gradients, shorter.work + converting, shorter.work))


def _on_devices(graph: Graph) -> Bools:
    """Return the mask of transfers that all known members enter from a device, whose memory holds the data."""
    member = graph.edge_kind == EdgeKind.MEMBER
    device = np.isin(graph.resource[graph.source], (Resource.STREAM, Resource.DEVICE))
    on_devices = np.zeros(len(graph), dtype=bool)
    on_devices[graph.target[member & device]] = True
    on_devices[graph.target[member & ~device]] = False
    return on_devices


def ranks_wanted(change: Change, present: int) -> int:
    """Return the number of ranks that a change asks for."""
    return round(change.factor * present) if change.factor else round(change.amount or present)


def with_ranks(scenario: Scenario, change: Change) -> Scenario:
    """Change the number of ranks; each does what the present ones do.

    Collectives of all ranks grow with their algorithm (ring, tree, or ring of hosts); those of smaller groups stay.
    Where the algorithm is unknown, ``luck`` chooses. The work of new ranks is drawn from that of the present ones:
    the last of more ranks comes later, at most by what independent draws make it.
    """
    graph, facts, luck = scenario.graph, scenario.graph.facts, scenario.unknowns.luck
    present = len(np.unique(graph.ends_rank))
    if facts is None or present < 2 or not graph.is_transfer.any():
        raise MissingDataError(
            "only one rank, or no collective, was recorded, so the cost of other ranks is unknown",
            hint="record the job with at least two ranks",
        )
    count = ranks_wanted(change, present)
    if count < 2 or count > POLICY.farthest_times * present:
        raise MissingDataError(
            f"{change}: a run of {present} ranks cannot predict {count}",
            hint=f"from 2 to {POLICY.farthest_times * present} ranks can be predicted",
        )
    whole = graph.is_transfer & (facts.members == present)
    if not whole.any() or (facts.members[graph.is_transfer] > present).any():
        raise MissingDataError(
            f"{change}: {present} ranks were recorded, but their collectives may have had other members, so the cost of"
            " other ranks is unknown",
            hint="give the files of all ranks",
        )
    fixed = latency_ns(scenario, whole)
    work = scenario.work.copy()
    for op in np.unique(facts.op[whole]).tolist():
        mine = whole & (facts.op == op)
        for hosts in np.unique(facts.hosts[mine]).tolist():
            chosen = mine & (facts.hosts == hosts)
            ring_only = bool(facts.is_ring[chosen].all())
            grown = _growths(CollectiveOp(op), present, count, hosts, ring_only=ring_only)
            times = [latency * fixed[chosen] + size * (work[chosen] - fixed[chosen]) for latency, size in grown]
            order = np.argsort([time.sum() for time in times])
            quick, slow = times[order[0]], times[order[-1]]
            work[chosen] = (1 - luck) * quick + luck * slow
    grown_fixed = fixed * np.divide(work, scenario.work, out=np.ones_like(work), where=scenario.work > 0)
    changed = _set_lengths(scenario, work, grown_fixed, whole)
    later = _later_ns(graph, scenario.work, present, count)
    # With fewer ranks the last one comes earlier, at most by that.
    part = luck if later > 0 else 1 - luck
    return _delay_last(changed, whole, part * later)


def _growths(op: CollectiveOp, present: int, count: int, hosts: int, *, ring_only: bool) -> list[tuple[float, float]]:
    """Return the factors of latency and of bytes for each algorithm that an operation may have.

    A ring of n ranks takes n - 1 hops (an all-reduce twice as many) and sends (n - 1) / n of the result; a tree takes
    log2 n levels and sends the message once each way; in a hierarchy only the ring of hosts grows.
    """
    gathers = op in (CollectiveOp.ALL_GATHER, CollectiveOp.GATHER)
    share = (count - 1) / (present - 1) if gathers else bytes_factor(count) / bytes_factor(present)
    growths = [((count - 1) / (present - 1), share)]
    levels = math.ceil(math.log2(count)) / math.ceil(math.log2(present))
    if op in (CollectiveOp.BROADCAST, CollectiveOp.REDUCE, CollectiveOp.BARRIER):
        return [(levels, 1.0)]
    if ring_only:
        return growths
    if op == CollectiveOp.ALL_REDUCE:
        growths.append((levels, 1.0))
    per_host = present / hosts
    more_hosts = count / per_host
    if hosts > 1 and per_host > 1 and more_hosts > 1:
        by_hosts = (more_hosts - 1) / (hosts - 1)
        growths.append((by_hosts, by_hosts if gathers else bytes_factor(math.ceil(more_hosts)) / bytes_factor(hosts)))
    return growths


def _later_ns(graph: Graph, work: Floats, present: int, count: int) -> float:
    """Return how much later the last of ``count`` independent ranks comes in a step than the last of ``present``."""
    threads = graph.is_thread & np.isin(graph.step, graph.ends_step[graph.ends_counted])
    ranks, steps = GroupBy(graph.rank[threads]), GroupBy(graph.step[threads])
    spent = GroupBy.cells((ranks.number, steps.number), (len(ranks), len(steps))).sum(work[threads])
    if not spent.size:
        return 0.0
    drawn = np.sort((spent - np.median(spent, axis=0)).ravel())
    below = np.arange(len(drawn) + 1) / max(len(drawn), 1)

    def last_of(draws: int) -> float:
        return float((drawn * np.diff(below**draws)).sum())

    return last_of(count) - last_of(present)


def _delay_last(scenario: Scenario, chosen: Bools, delay_ns: float) -> Scenario:
    """Delay the last of these transfers in each step; a negative delay lets it begin earlier."""
    graph = scenario.graph
    member = np.flatnonzero((graph.edge_kind == EdgeKind.MEMBER) & chosen[graph.target])
    step, transfer = graph.step[graph.source[member]], graph.target[member]
    order = order_by(step, graph.begin_ns[transfer])
    last = order[GroupBy.runs(step[order]).bounds[1:] - 1]
    lag = scenario.lag.copy()
    lag[member[np.isin(transfer, transfer[last])]] += delay_ns
    return replace(scenario, lag=lag)


def _set_lengths(scenario: Scenario, work: Floats, fixed: Floats, chosen: Bools) -> Scenario:
    """Set lengths and latencies of chosen transfers; the delays of their members grow or shrink with them."""
    graph, before = scenario.graph, scenario.work
    ratio = np.divide(work, before, out=np.ones_like(work), where=chosen & (before > 0))
    released = (graph.edge_kind == EdgeKind.RELEASE) & chosen[graph.source] & (scenario.lag > 0)
    lag = np.where(released, ratio[graph.source] * scenario.lag, scenario.lag)
    kept = None if scenario.fixed is None else np.where(chosen, fixed, scenario.fixed)
    return replace(scenario, work=np.where(chosen, work, before), lag=lag, fixed=kept)


def latency_ns(scenario: Scenario, chosen: Bools) -> Floats:
    """Return the latency of each chosen transfer, 0 for other nodes."""
    graph, run, latency = scenario.graph, scenario.run, np.zeros(len(scenario.work))
    op, of_run = (_ops(number) for number in (graph, run))
    carries = run.is_transfer | (run.resource == Resource.STREAM)
    similar = carries & np.isin(run.kind, graph.kind[chosen]) & (run.work_ns > 0)
    for number in np.unique(op[chosen]).tolist():
        # The fit takes all messages of the operation over these links, not only those that change.
        low, high = latency_bounds_ns(run, similar & (of_run == number), CollectiveOp(max(number, 0)))
        mine = chosen & (op == number)
        latency[mine] = low + scenario.unknowns.latency * (high - low)
    if len(graph.doubtful) and scenario.unknowns.latency > 0:
        # All of it may be a wait for members that were not recorded.
        held = chosen & graph.doubtful
        latency[held] += scenario.unknowns.latency * (scenario.work[held] - latency[held])
    return np.minimum(latency, scenario.work)


def _ops(graph: Graph) -> Int64:
    return graph.facts.op if graph.facts is not None else np.zeros(len(graph), dtype=np.int64)


def latency_bounds_ns(graph: Graph, chosen: Bools, op: CollectiveOp) -> tuple[float, float]:
    """Return the least and the largest latency of transfers of one kind of operation."""
    begin, end = counted_span(graph)
    steady = chosen & (graph.begin_ns >= begin) & (graph.begin_ns <= end) & (graph.moved_bytes > 0)
    # The set-up of a job moves other sizes, once, over connections that are not made yet.
    steady = steady if steady.sum() >= POLICY.fewest_transfers_count else chosen & (graph.moved_bytes > 0)
    sizes, times = graph.moved_bytes[steady].astype(np.float64), graph.work_ns[steady].astype(np.float64)
    if not len(times):
        times = graph.work_ns[chosen].astype(np.float64)
        return 0.0, float(np.median(times)) if len(times) else 0.0
    typical = float(of_sizes(sizes, times, 0.5).min())
    if sizes.max() >= POLICY.sizes_apart_times * sizes.min():
        order = np.argsort(sizes, kind="stable")
        times = np.maximum(times[order], 1.0)
        line = robust_line(sizes[order], times, np.ones(len(times)), errors_known=False, from_zero=True)
        error = POLICY.standard_errors * math.sqrt(max(line.alpha_variance, 0.0))
        low, high = (float(np.clip(line.alpha_ns + side * error, 0.0, typical)) for side in (-1, 1))
        return low, high
    return 0.0, min(typical, _tiny_ns(graph, chosen, op))


def _tiny_ns(graph: Graph, chosen: Bools, op: CollectiveOp) -> float:
    """Return the time of the quickest tiny message over the same link for the hops of this operation; else infinity."""
    if graph.facts is None:
        return math.inf
    link = np.isin(graph.kind, graph.kind[chosen]) & graph.is_transfer
    tiny = np.flatnonzero(
        link & (graph.moved_bytes <= POLICY.latency_only_bytes) & (graph.work_ns > 0) & (graph.facts.members > 1)
    )
    if not len(tiny):
        return math.inf
    members = int(np.median(graph.facts.members[chosen]))
    hop = (graph.work_ns[tiny] / _hops(graph.facts.op[tiny], graph.facts.members[tiny])).min()
    return POLICY.hops_apart_times * float(hop) * float(_hops(int64([op]), int64([members]))[0])


def _hops(op: Int64, members: Int64) -> Floats:
    """Return the least number of messages, one after the other, of each operation by its members."""
    ring = np.maximum(members, 2) - 1
    parts = np.isin(op, (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL))
    levels = np.ceil(np.log2(ring + 1.0))
    return np.select([op == CollectiveOp.ALL_REDUCE, parts], [2.0 * ring, 1.0 * ring], levels)


def _bits_per_s(graph: Graph, chosen: Bools, moving_ns: Floats) -> float:
    """Return the rate at which these transfers moved the bytes that their algorithm sends over each link."""
    rows = np.flatnonzero(chosen & (graph.moved_bytes > 0) & _in_span(graph))
    if graph.facts is None or not len(rows) or not moving_ns[rows].sum():
        return math.inf
    reduced = np.isin(graph.facts.op[rows], (CollectiveOp.ALL_REDUCE,))
    members = np.maximum(graph.facts.members[rows], 2)
    sent = graph.moved_bytes[rows] * np.where(reduced, 2 * (members - 1) / members, 1.0)
    return _BITS * 1e9 * float(sent.sum()) / float(moving_ns[rows].sum())


def _in_span(graph: Graph) -> Bools:
    begin, end = counted_span(graph)
    inside = (graph.begin_ns >= begin) & (graph.begin_ns <= end)
    return inside if (inside & graph.is_transfer).any() else np.ones(len(graph), dtype=bool)
