"""A model of a run's communication: alpha and beta per operation, and exposed communication.

It is not registered as an analysis, since its result is not a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Bools, Int64, int64
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.calibration.file import Points
from stashtrace.calibration.fit_link import Fit, fit_alpha_beta
from stashtrace.calibration.robust_line import Floats, r_squared
from stashtrace.errors import MissingDataError
from stashtrace.replay.communication import overlap
from stashtrace.replay.communication.messages import DdpFacts, Messages, gradient_messages
from stashtrace.replay.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMN_OF, COLUMNS
from stashtrace.schema.trace import Trace
from stashtrace.text.prose import plural

#: Sizes of the forecast, ``bucket_cap_mb`` of DistributedDataParallel in MiB. All in one message is added.
BUCKETS_MIB = (1, 4, 25, 100)
FEWEST_SIZES = 3
#: Caps that are tried where they would divide the messages of the run.
_DIVIDING_MIB = tuple(float(2**power) for power in range(-2, 8))
#: A cost of bytes is significant from this many standard errors on.
SURE = 2.0


@dataclass(frozen=True, slots=True)
class LinkFit:
    """One operation of one communicator."""

    communicator: str
    op: str
    backend: str
    ranks_count: int
    messages_count: int
    #: Time that the link worked for messages of each size.
    points: Points
    #: None if there are too few sizes.
    fit: Fit | None
    #: R2 of the medians; NaN without a fit.
    r2_ratio: float


@dataclass(frozen=True, slots=True)
class Passes:
    """One entry per backward pass (of the lowest rank of each group)."""

    rank: Int64
    step: Int64
    messages_count: Int64
    bytes: Int64
    #: Sum of the times that the link worked, measured and by the fits.
    link_ns: Floats
    link_predicted_ns: Floats
    #: Exposed communication: as measured, by the recurrence with measured times, and with those of the fits.
    observed_ns: Floats
    replayed_ns: Floats
    predicted_ns: Floats
    #: The prediction from the length of backward and the sizes alone; NaN where callers wait for messages, or a device
    #: runs them.
    by_sizes_ns: Floats

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class BucketForecast:
    """Exposed communication with another size of buckets, medians over backward passes."""

    #: ``bucket_cap_mb``; 0 for buckets as recorded, -1 for one message, -2 for the best merge.
    bucket_mib: float
    messages_count: float
    exposed_ns: float
    #: Messages had to be divided, which assumes that gradients come at an even rate.
    split: bool


@dataclass(frozen=True, slots=True)
class CommunicationModel:
    """The results of ``stashtrace model RUN``."""

    #: By bytes sent, most first.
    links: tuple[LinkFit, ...]
    passes: Passes
    #: Also empty where bytes seem to cost nothing, since then large buckets would be free.
    buckets: tuple[BucketForecast, ...]
    #: The ``bucket_cap_mb`` that exposes least; None if ``buckets`` is empty, or none is better than those of the run.
    best: BucketForecast | None
    #: Medians over ranks and steps: the step, its network and interconnect stalls, its straggler stall. NaN if the run
    #: has no steps.
    step_ns: float
    attributed_ns: float
    late_ns: float
    #: What is unknown or doubtful.
    notes: tuple[str, ...]


def communication_model(trace: Trace, *, needs_fit: bool = True) -> CommunicationModel:
    """Fit the collectives of a run, and predict what its backward passes leave exposed.

    ``trace``: needs collectives of at least three sizes of one operation; steps and phases for what is exposed.
    ``needs_fit``: false to go without a fit where there are too few sizes; predictions are then NaN. Raises
    MissingDataError if no collective was recorded, or no operation has three sizes.
    """
    messages = gradient_messages(trace)
    counts = messages.step >= 0 if messages.has_steps and (messages.step >= 0).any() else np.ones(len(messages), bool)
    links, of = links_of(messages, np.flatnonzero(counts))
    if needs_fit and not any(link.fit for link in links):
        most = max(links, key=lambda link: len(link.points.sizes_bytes))
        sizes = len(most.points.sizes_bytes)
        raise MissingDataError(
            f"{sizes} message size{plural(sizes)} of {most.op} cannot carry a fit of alpha and beta",
            hint="a message per tensor makes more sizes: DistributedDataParallel(model, bucket_cap_mb=0.001)",
        )
    passes, typical = _passes(messages, links, of)
    notes = [
        f"{link.op} of {link.communicator}: {len(link.points.sizes_bytes)} of 3 sizes that a fit needs; predicted by"
        " their medians"
        for link in links
        if link.fit is None
    ]
    if not len(passes):
        why = "the run has no steps" if not messages.has_steps else "no message was sent in a backward pass that counts"
        notes.append(f"exposed communication is unknown: {why}")
    elif messages.on_device.any():
        notes.append(
            "the recording shows when a device began messages, not when their gradients were ready; on a busy link that"
            " is interpolated by bytes"
        )
    free = [links[at] for at in sorted({p.link for p in typical if p.link >= 0}) if not tells_bytes(links[at])]
    notes += [
        f"{link.op} of {link.communicator}: the cost of a byte is lost in the scatter, so other buckets are not"
        " forecast; record larger messages or more steps"
        for link in free
    ]
    buckets = () if free else _buckets(typical, links, messages.ddp)
    if typical and not (buckets or free):
        notes.append(f"other buckets are not forecast: {_why_no_buckets(typical)}")
    step_ns, attributed, late = _median_step(trace)
    best = _best(typical, links, messages.ddp) if buckets else None
    return CommunicationModel(links, passes, buckets, best, step_ns, attributed, late, tuple(notes))


def ranked_buckets(messages: Messages) -> list[BucketForecast]:
    """Return sizes of buckets by the communication that they expose, the least first; none if that is unknown."""
    counts = messages.step >= 0
    if not counts.any():
        return []
    links, of = links_of(messages, np.flatnonzero(counts))
    typical = _passes(messages, links, of)[1]
    if any(not tells_bytes(links[each_pass.link]) for each_pass in typical if each_pass.link >= 0):
        return []
    return _rank_forecasts(typical, links, messages.ddp)


def links_of(messages: Messages, rows: Int64) -> tuple[tuple[LinkFit, ...], Int64]:
    """Fit the operations of these messages; return them by bytes sent, and the index of each message's (-1: none)."""
    kind = _kinds(messages)
    links = []
    for number in np.unique(kind[rows]).tolist():
        chosen = rows[kind[rows] == number]
        # Of two messages that shared a thread, one may have no time left: it is not a point of the fit.
        chosen = chosen[messages.link_ns[chosen] > 0]
        if not len(chosen):
            continue
        points = _points(messages.bytes[chosen], messages.link_ns[chosen])
        fit, r2 = None, float("nan")
        if len(points.sizes_bytes) >= FEWEST_SIZES:
            fit = fit_alpha_beta(points.sizes_bytes, points.median_ns, points.errors_ns(), max_pieces=1)
            r2 = r_squared(points.median_ns, fit.expected(points.sizes_bytes)[0])
        first = chosen[0]
        link = LinkFit(
            str(messages.communicator[first]),
            str(messages.op[first]),
            str(messages.backend[first]),
            int(messages.ranks_count[first]),
            len(chosen),
            points,
            fit,
            r2,
        )
        links.append((-int(messages.bytes[chosen].sum()), number, link))
    links.sort(key=lambda entry: entry[:2])
    place = np.full(int(kind.max()) + 1, -1, dtype=np.int64)
    place[int64([number for _, number, _ in links])] = np.arange(len(links))
    return tuple(link for *_, link in links), place[kind]


def _kinds(messages: Messages) -> Int64:
    """Number each message's operation: name of the communicator, operation, backend, ranks.

    Groups of one name count as one group of different ranks, as a mesh makes them, unless their size or backend
    differs: then they are different links.
    """
    return GroupBy(messages.communicator, messages.op, messages.backend, messages.ranks_count).number


def _points(sizes: Int64, times: Floats) -> Points:
    by_size = GroupBy(sizes)
    low, middle, high = np.array([np.percentile(times[rows], (25, 50, 75)) for rows in by_size]).T.tolist()
    return Points(tuple(by_size.values.tolist()), *map(tuple, (middle, low, high, by_size.sizes.tolist())))


@dataclass(frozen=True, slots=True)
class _Pass:
    """Messages of one backward pass for the recurrence; ``link`` is their fitted operation, -1 if there are several."""

    ready_ns: Floats
    bytes: Int64
    blocking: Bools
    link: int


def _expected_times(messages: Messages, links: Sequence[LinkFit], of: Int64) -> Floats:
    """Return the time of each message by the fit of its operation, else the median of its size."""
    out = np.zeros(len(messages))
    for at, link in enumerate(links):
        chosen = of == at
        size = messages.bytes[chosen].astype(np.float64)
        out[chosen] = (
            link.fit.expected(size)[0]
            if link.fit is not None
            else np.interp(size, link.points.sizes_bytes, link.points.median_ns)
        )
    return out


def _passes(messages: Messages, links: Sequence[LinkFit], of: Int64) -> tuple[Passes, list[_Pass]]:
    rows = np.flatnonzero(messages.backward >= 0)
    rows = rows[np.lexsort((messages.ready_ns[rows], messages.backward[rows], messages.rank[rows]))]
    expected = _expected_times(messages, links, of)
    fitted = any(link.fit is not None for link in links)
    table: list[tuple[float, ...]] = []
    typical: list[_Pass] = []
    for of_pass in GroupBy.runs(messages.rank[rows], messages.backward[rows]):
        chosen = rows[of_pass]
        waits = messages.blocking[chosen].copy()
        waits[-1] = False  # nothing follows: the wait for it is the time to the last end
        ready = _compute_clock(messages, chosen, waits)
        before, last = chosen[:-1][waits[:-1]], int(messages.end_ns[chosen].max() - messages.ready_ns[chosen[-1]])
        observed = float((messages.end_ns[before] - messages.ready_ns[before]).sum()) + max(last, 0)
        link, model, lane = messages.link_ns[chosen], expected[chosen], messages.lane[chosen]
        even = not waits.any() and not messages.on_device[chosen].any()
        table.append(
            (
                messages.rank[chosen[0]],
                messages.step[chosen[0]],
                len(chosen),
                messages.bytes[chosen].sum(),
                link.sum(),
                model.sum(),
                observed,
                overlap.schedule(ready, link, blocking=waits, lane=lane).exposed_ns,
                overlap.schedule(ready, model, blocking=waits, lane=lane).exposed_ns if fitted else np.nan,
                overlap.schedule(overlap.ready_by_sizes(messages.bytes[chosen], ready[-1]), model, lane=lane).exposed_ns
                if fitted and even
                else np.nan,
            )
        )
        at = int(of[chosen[0]])
        alone = at >= 0 and links[at].fit is not None and (of[chosen] == at).all() and (lane == lane[0]).all()
        typical.append(_Pass(ready, messages.bytes[chosen], waits, at if alone else -1))
    columns = np.array(table, dtype=np.float64).reshape(len(table), 10).T
    whole = [column.astype(np.int64) for column in columns[:4]]
    return Passes(*whole, *columns[4:]), typical


def tells_bytes(link: LinkFit) -> bool:
    """Return True if bytes cost time: where they seem free, one message of everything would be free too."""
    assert link.fit is not None
    piece = link.fit.pieces[0]
    return piece.beta_ns_per_byte > 0 and not piece.beta_ns_per_byte < SURE * piece.beta_error_ns_per_byte


def _compute_clock(messages: Messages, chosen: Int64, waits: Bools) -> Floats:
    """Return when the messages of a pass were ready, in time since its begin without waits for messages."""
    ready, end = messages.ready_ns[chosen], messages.end_ns[chosen]
    since = np.maximum(ready[1:] - np.where(waits[:-1], end[:-1], ready[:-1]), 0)
    clock = np.append(0.0, np.cumsum(since).astype(np.float64))
    if not messages.on_device[chosen].any():
        return clock + max(float(ready[0] - messages.backward_begin_ns[chosen[0]]), 0.0)
    if len(chosen) > 1:
        latest = np.maximum.accumulate(end)[:-1]
        seen = np.append(True, ready[1:] > latest + POLICY.queued_ns)
        if seen.sum() > 1 and not seen.all():
            sent = np.cumsum(messages.bytes[chosen]).astype(np.float64)
            rate = np.diff(clock[seen])[-1] / max(np.diff(sent[seen])[-1], 1.0)
            guess = np.interp(sent, sent[seen], clock[seen])
            beyond = sent > sent[seen][-1]
            guess[beyond] = clock[seen][-1] + rate * (sent[beyond] - sent[seen][-1])
            clock = np.where(seen, clock, np.minimum(guess, clock))
    return clock


def _why_no_buckets(typical: Sequence[_Pass]) -> str:
    """Return why none of these passes can be forecast."""
    if all(each_pass.blocking.any() for each_pass in typical):
        return "callers wait for messages before they go on"
    return "messages of a backward pass are of several operations or communicators, or of one without a fit"


def _usable(typical: Sequence[_Pass], most: int) -> list[_Pass]:
    usable = [each_pass for each_pass in typical if each_pass.link >= 0 and not each_pass.blocking.any()]
    return usable[:: max(len(usable) // most, 1)]


def _best(typical: Sequence[_Pass], links: Sequence[LinkFit], ddp: DdpFacts) -> BucketForecast | None:
    ranked = _rank_forecasts(typical, links, ddp)
    if not ranked:
        return None
    now = _forecast(_usable(typical, POLICY.searched_passes_count), links, 0.0, ddp)
    return ranked[0] if ranked[0].exposed_ns < (1 - POLICY.worth_rebucketing_ratio) * now.exposed_ns else None


def _rank_forecasts(typical: Sequence[_Pass], links: Sequence[LinkFit], ddp: DdpFacts) -> list[BucketForecast]:
    """Forecast all caps that group the gradients in different ways, the best first; unknown gradients are even."""
    usable = _usable(typical, POLICY.searched_passes_count)
    if not usable:
        return []
    known = [each_pass for each_pass in usable if overlap.are_made_of(each_pass.bytes, ddp.gradients_bytes)]
    if known:  # other passes are of other gradients, as before the buckets were built again
        usable = known
        caps = {overlap.rounded_cap(cap, ddp.gradients_bytes) for cap in overlap.merge_caps(ddp.gradients_bytes)}
        dividing = set[float]()
    else:
        middle = sorted(usable, key=lambda each_pass: int(each_pass.bytes.sum()))[len(usable) // 2].bytes
        merging = {overlap.rounded_cap(cap, middle) for cap in overlap.merge_caps(middle)}
        caps = {mib for mib in merging if not any(_is_divided(each_pass, mib, ddp) for each_pass in usable)}
        dividing = {mib for mib in _DIVIDING_MIB if any(_is_divided(each_pass, mib, ddp) for each_pass in usable)}
    forecasts = [_forecast(usable, links, mib, ddp) for mib in sorted(caps | dividing)]
    return sorted(forecasts, key=lambda each_pass: (each_pass.exposed_ns, each_pass.messages_count))


def _is_divided(each_pass: _Pass, bucket_mib: float, ddp: DdpFacts) -> bool:
    """Return True if buckets of this size would divide the messages of a pass, of whose gradients nothing is known."""
    return overlap.divides(each_pass.bytes, bucket_mib * 2**20, ddp.bucket_bytes)


def _buckets(typical: Sequence[_Pass], links: Sequence[LinkFit], ddp: DdpFacts) -> tuple[BucketForecast, ...]:
    usable = _usable(typical, POLICY.forecast_passes_count)
    if not usable:
        return ()
    total = float(np.median([each_pass.bytes.sum() for each_pass in usable]))
    sizes = [0.0, *(float(mib) for mib in BUCKETS_MIB if mib * 2**20 < total), -1.0, -2.0]
    return tuple(_forecast(usable, links, mib, ddp) for mib in sizes)


def _forecast(usable: Sequence[_Pass], links: Sequence[LinkFit], mib: float, ddp: DdpFacts) -> BucketForecast:
    counts, exposed, divided = [], [], []
    for each_pass in usable:
        fit = links[each_pass.link].fit
        assert fit is not None
        piece = fit.pieces[0]
        ready, sizes = each_pass.ready_ns, each_pass.bytes.astype(np.float64)
        if mib == -1.0:
            ready, sizes = overlap.merged(ready, sizes, np.array([0]))
        elif mib == -2.0:
            starts = overlap.best_merge(ready, sizes, piece.alpha_ns, piece.beta_ns_per_byte)
            ready, sizes = overlap.merged(ready, sizes, starts)
        elif mib > 0:
            ready, sizes, anywhere = overlap.rebucketed(
                ready, sizes, mib * 2**20, gradients_bytes=ddp.gradients_bytes, recorded_bytes=ddp.bucket_bytes
            )
            divided.append(anywhere)
        counts.append(len(sizes))
        exposed.append(overlap.schedule(ready, fit.expected(sizes)[0]).exposed_ns)
    split = bool(divided) and float(np.mean(divided)) > 0.5
    return BucketForecast(mib, float(np.median(counts)), float(np.median(exposed)), split)


def _median_step(trace: Trace) -> tuple[float, float, float]:
    """Return the median step, its time in transfers, and its time waiting for late ranks, by the attribution."""
    try:
        known = counted_steps(steps(trace))
    except MissingDataError:
        return (float("nan"),) * 3
    if not len(known):
        return (float("nan"),) * 3
    rows = analyze(trace, "stalls", warmup=True)
    sums: dict[str, dict[tuple[int, int], int]] = {"link": {}, "late": {}}
    chosen = rows.take(np.isin(rows["kind"], (*COLUMNS["link"], *COLUMNS["late"])))
    columns = (chosen[name].tolist() for name in ("rank", "step", "kind", "stall_ns"))
    for rank, step, kind, value in zip(*columns, strict=True):
        into = sums[COLUMN_OF[kind]]
        into[rank, step] = into.get((rank, step), 0) + value
    places = list(zip(known["rank"].tolist(), known["step"].tolist(), strict=True))
    link, late = ([sums[name].get(place, 0) for place in places] for name in ("link", "late"))
    return float(np.median(known["end_ns"] - known["begin_ns"])), float(np.median(link)), float(np.median(late))
