"""links: the paths that the bytes of collectives took, from traffic counters of devices and hosts.

Per place and path: bytes of each sample window = background rate * length + sum over classes of share * expected bytes
of the class in the window. A class is a communicator and an operation; its share is the part of each expected byte
that this path carried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.collectives.matching import group_table, match
from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.intervals import NEVER, Bools, Floats, Int64, TimeSet, int64
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp, TrackKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

LINKS = col.schema(
    "links",
    "Which path carried the bytes of collectives, by regression of sampled counters",
    col.word("communicator", "name of the group", detail=2),
    col.word("op", "CollectiveOp in lower case"),
    col.word("path", "nvlink or pcie of the devices; rdma PORT or net INTERFACE of the hosts"),
    col.number("places_count", "devices or hosts whose counters were used"),
    col.number("collectives_count", "rows of collectives while samples were taken, all places added"),
    col.nbytes("expected_bytes", "what they had to move while samples were taken, all places added"),
    col.nbytes("seen_bytes", "what the path moved while they ran, from whatever cause"),
    col.real("share_ratio", "bytes on the path for each expected byte, -1 if it cannot be said", missing=-1),
    col.real("error_ratio", "standard error of share_ratio, -1 if there is none", missing=-1),
    col.number("windows_count", "windows between samples that held some of the bytes"),
    col.word("confidence", "good, fair, weak, upper bound, not enough samples or not separable"),
)

#: Classes of a place that get a separate share; those with fewer expected bytes share one, which is not reported.
_MOST_CLASSES = 8
#: A class needs this many windows with some of its bytes; a fit needs this many windows more than it has unknowns.
_FEWEST_WINDOWS = 5
#: Part of a class that the other classes do not explain: below this, its share is not separable from theirs.
_LEAST_OWN = 0.05
#: Largest standard error of a share that counts as good, and as fair.
_GOOD, _FAIR = 0.05, 0.2
#: An interface of a host is listed if it moved at least this part of the expected bytes of a class.
_WORTH_A_ROW = 0.01

_Class = tuple[int, int]


@dataclass(slots=True)
class _Share:
    """One class on one path, over all places."""

    expected: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    windows: int = 0
    collectives: int = 0
    problems: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Coefficient and standard error of each column, and whether it is separable from the others."""

    share: Floats
    error: Floats
    separate: np.ndarray


def links(trace: Trace) -> Table:
    """Estimate which path carried the bytes of collectives: NVLink, PCIe, an RDMA port or a network interface.

    Expected bytes follow the bus-bandwidth factors: for n ranks and an input of S bytes a rank sends 2 (n-1)/n S in an
    all-reduce ((n+1)/n S if NCCL says that the switch reduces), (n-1) S in an all-gather, (n-1)/n S in
    reduce-scatter, all-to-all, broadcast and reduce. Barriers, gathers, scatters and unknown operations have no
    expected bytes. They are spread evenly from the entry of the last rank to the end. Bytes of a path are the mean
    of both directions. Least squares over the windows between samples, with a background rate, per device or host;
    shares of places are averaged by expected bytes. Standard errors allow for noise that is unequal (HC1) or lasts for
    some windows (Newey-West).

    ``confidence`` is good (standard error up to 0.05), fair (up to 0.2) or weak; ``upper bound`` where the class fills
    every window in the same way, so that it cannot be separated from a steady background and all traffic counts as its
    own (more samples a second help); ``not enough samples`` where too few windows hold it; ``not separable`` where it
    always occurs with another class. Shares of a class add up to 1 if every path was sampled and NCCL moved the bytes
    that the factors give; PCIe includes the hop to a NIC, so the shares of both may be near 1. Columns: table ``links``
    of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives, and counters of the collector nvml or proc.

    Raises
    ------
    MissingDataError
        If no collective or no counter of bytes was recorded.
    """
    if len(trace.collectives) == 0:
        raise MissingDataError("no collective was recorded", hint="run more than one rank")
    paths = sampled_paths(trace)
    if not paths:
        raise MissingDataError(
            "no counter of bytes on links was sampled",
            hint="run with the collectors nvml and proc, longer than a second",
        )
    expected = expected_traffic(trace)
    shares: dict[tuple[_Class, str], _Share] = {}
    for (place, path), samples in sorted(
        paths.items(), key=lambda item: (item[0][0].kind, item[0][0].name, item[0][1])
    ):
        _add_place(expected, place, path, samples, shares)
    rows = []
    hashes = np.array([group for (group, _), _ in shares], dtype=np.uint64)
    for ((_, op), path), name, each in zip(
        shares, communicator_names(trace, hashes).tolist(), shares.values(), strict=True
    ):
        total, seen = sum(each.expected), sum(each.seen)
        if path.startswith(("net ", "rdma ")) and seen < _WORTH_A_ROW * total:
            continue
        share, error, confidence = _combine(each)
        rows.append(
            (
                name,
                CollectiveOp(op).name.lower(),
                path,
                len(each.expected),
                each.collectives,
                round(total),
                round(seen),
                share,
                error,
                each.windows,
                confidence,
            )
        )
    return Table.from_rows(LINKS, sorted(rows, key=lambda row: (-row[5], row[0], row[1], row[2])))


def _add_place(
    expected: Expected, place: Place, path: str, samples: Sequence[Samples], shares: dict[tuple[_Class, str], _Share]
) -> None:
    """Fit one path of one place and add its result to each class."""
    sampled = [(expected.end_ns > part.edges[0]) & (expected.begin_ns < part.edges[-1]) for part in samples]
    here = expected.at(place) & np.logical_or.reduce(sampled)
    keys = list(zip(expected.group[here].tolist(), expected.op[here].tolist(), strict=True))
    if not keys:
        return
    begin, end, amount = expected.begin_ns[here], expected.end_ns[here], expected.sent_bytes[here]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    of_class = np.array([number[key] for key in keys])
    weight = GroupBy.numbered(of_class, len(number)).sum(amount)
    own = sorted(number.values(), key=lambda i: -weight[i])[:_MOST_CLASSES]
    columns = [_per_window(samples, begin, end, amount, of_class == i) for i in own]
    rest = ~np.isin(of_class, own)
    if rest.any():
        columns.append(_per_window(samples, begin, end, amount, rest))
    columns.append(np.concatenate([np.diff(part.edges) for part in samples]).astype(np.float64))
    moved = np.concatenate([np.diff(part.total) for part in samples])
    with_background = _fit(np.stack(columns, axis=1), moved)
    without = _fit(np.stack(columns[:-1], axis=1), moved)
    for key, i in number.items():
        if i not in own:
            continue
        at = own.index(i)
        chosen, filled = of_class == i, int((columns[at] > 0).sum())
        busy = TimeSet.of(begin[chosen], end[chosen])
        each = shares.setdefault((key, path), _Share())
        each.expected.append(float(columns[at].sum()))
        each.seen.append(sum(float((part.until(busy.end) - part.until(busy.begin)).sum()) for part in samples))
        each.collectives += int(chosen.sum())
        each.windows += filled
        share, error = np.nan, np.nan
        if filled < _FEWEST_WINDOWS or len(moved) < len(columns) + _FEWEST_WINDOWS:
            each.problems.add("not enough samples")
        elif with_background.separate[at]:
            share, error = with_background.share[at], with_background.error[at]
        elif without.separate[at]:
            share, error = without.share[at], without.error[at]
            each.problems.add("upper bound")
        else:
            each.problems.add("not separable")
        each.share.append(float(share))
        each.error.append(float(error))


def _per_window(
    samples: Sequence[Samples], begin: np.ndarray, end: np.ndarray, amount: Floats, chosen: np.ndarray
) -> Floats:
    return np.concatenate(
        [np.diff(moved_until(part.edges, begin[chosen], end[chosen], amount[chosen])) for part in samples]
    )


def _fit(columns: Floats, moved: Floats) -> _Fit:
    """Least squares; standard errors for unequal noise (HC1) and for noise that lasts (Newey-West): the larger."""
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    x = columns / scale
    inverse = np.linalg.pinv(x.T @ x)
    coefficient = inverse @ (x.T @ moved)
    residual = moved - x @ coefficient
    spare = max(len(moved) - x.shape[1], 1)
    score = x * residual[:, None]
    plain = score.T @ score
    lasting = plain.copy()
    lags = int(4 * (len(moved) / 100) ** (2 / 9)) + 1
    for lag in range(1, min(lags, len(moved) - 1) + 1):
        moment = score[lag:].T @ score[:-lag]
        lasting += (1 - lag / (lags + 1)) * (moment + moment.T)
    variance = np.maximum(np.diag(inverse @ plain @ inverse), np.diag(inverse @ lasting @ inverse))
    error = np.sqrt(np.maximum(variance, 0.0) * (len(moved) / spare))
    # Columns are normalised here, so this is the part of each that the others do not explain.
    own = 1.0 / np.maximum(np.diag(inverse), 1e-12)
    full = bool(np.linalg.matrix_rank(x) == x.shape[1])
    return _Fit(coefficient / scale, error / scale, (own >= _LEAST_OWN) & full)


def _combine(each: _Share) -> tuple[float, float, str]:
    """Return (share, error, confidence) over all places, weighted by expected bytes; -1 if most bytes have no share."""
    expected, share, error = (np.array(values) for values in (each.expected, each.share, each.error))
    known = ~np.isnan(share) & (expected > 0)
    if expected[known].sum() <= 0.5 * expected.sum():
        return -1.0, -1.0, min(each.problems - {"upper bound"}, default="not enough samples")
    weight = expected[known] / expected[known].sum()
    total = float(np.sqrt(((weight * error[known]) ** 2).sum()))
    confidence = "good" if total <= _GOOD else "fair" if total <= _FAIR else "weak"
    if "upper bound" in each.problems:
        confidence = "upper bound"
    return float((weight * share[known]).sum()), total, confidence


# Bytes by path: growth of counters of devices and hosts between samples, and bytes expected of collectives.
#
# A *place* is a device (by UUID) or a host; a *path* is NVLink or PCIe of a device, an RDMA
# port or a network interface of a host. Bytes of a path are the mean of both directions, and so are expected bytes.


_DEVICE = re.compile(r"gpu_(nvlink|pcie)_(transmit|receive)_bytes_total\.([^:]+)(?::(\d+))?$")
_HOST = re.compile(r"(rdma|net)_(transmit|receive)_bytes_total\.(.+)$")
_WHOLE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """A device or a host: ``("gpu", UUID)`` or ``("host", name)``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Samples:
    """One path as one process sampled it: bytes moved so far (mean of both directions) at each edge."""

    edges: Int64
    total: Floats

    def until(self, ts_ns: Int64) -> Floats:
        """Return the bytes moved until each time, interpolated between samples."""
        return np.asarray(np.interp(ts_ns, self.edges, self.total), dtype=np.float64)


@dataclass(slots=True)
class _Readings:
    """Series of one path and process, by direction and link."""

    series: dict[tuple[str, int], tuple[Int64, Floats]] = field(default_factory=dict)

    def both_ways(self) -> list[tuple[Int64, Floats]]:
        """Return whole-device series if there are any, else those of the links; empty if a direction is missing."""
        both: list[tuple[Int64, Floats]] = []
        for way in ("transmit", "receive"):
            of_way = {link: s for (w, link), s in self.series.items() if w == way}
            both.extend([of_way[_WHOLE]] if _WHOLE in of_way else of_way.values())
            if not of_way:
                return []
        return both


def sampled_paths(trace: Trace) -> dict[tuple[Place, str], list[Samples]]:
    """Map (place, path) to the samples of each process."""
    hosts = trace.processes.lookup("process_id", "host_code")
    counters = trace.counters.sort_by("track_id", "ts_ns")
    raw: dict[tuple[Place, int], dict[str, _Readings]] = {}
    for row in trace.tracks.take(trace.tracks["kind_code"] == TrackKind.COUNTER).rows():
        name = trace.text(row["name_code"])
        device, host = _DEVICE.match(name), _HOST.match(name)
        if device:
            path, way, uuid, link = device.groups()
            place, number = Place("gpu", uuid), int(link) if link else _WHOLE
        elif host:
            kind, way, port = host.groups()
            place, path, number = Place("host", trace.text(hosts[row["process_id"]])), f"{kind} {port}", _WHOLE
        else:
            continue
        first, last = np.searchsorted(counters["track_id"], [row["track_id"], row["track_id"] + 1])
        if last - first > 1:
            readings = raw.setdefault((place, row["process_id"]), {}).setdefault(path, _Readings())
            readings.series[way, number] = (counters["ts_ns"][first:last], counters["value"][first:last])
    samples: dict[tuple[Place, str], list[Samples]] = {}
    for (place, _), paths in raw.items():
        # A path that moves nothing has one sample a second; the windows are those of the busiest path of the place.
        densest = max((ts for r in paths.values() for ts, _ in r.both_ways()), key=len, default=int64([]))
        for path, readings in paths.items():
            series = readings.both_ways()
            if series:
                begin, end = max(int(ts[0]) for ts, _ in series), min(int(ts[-1]) for ts, _ in series)
                edges = np.unique(densest[(densest >= begin) & (densest <= end)])
                if len(edges) > 1:
                    moved = sum((np.interp(edges, ts, value) - value[0] for ts, value in series), np.zeros(len(edges)))
                    samples.setdefault((place, path), []).append(Samples(edges, moved / 2))
    return samples


@dataclass(frozen=True, slots=True)
class Expected:
    """Collectives with a known traffic, one entry each."""

    #: Time in which bytes could move: from the last rank's entry to the end.
    begin_ns: Int64
    end_ns: Int64
    #: Bytes that one rank has to send, and to receive, by the bus-bandwidth factor of the operation.
    sent_bytes: Floats
    #: Group hash and CollectiveOp.
    group: npt.NDArray[np.uint64]
    op: Int64
    #: Place number in ``devices`` and ``hosts``; -1 if not known.
    device: Int64
    host: Int64
    devices: list[str]
    hosts: list[str]

    def at(self, place: Place) -> Bools:
        """Return a mask of the collectives that a place took part in."""
        names, column = (self.devices, self.device) if place.kind == "gpu" else (self.hosts, self.host)
        chosen: Bools = column == (names.index(place.name) if place.name in names else -2)
        return chosen


def expected_traffic(trace: Trace) -> Expected:
    """Return the bytes that each collective had to move, when and where."""
    table, matched = trace.collectives, match(trace)
    timed = (table["device_begin_ns"] >= 0) & (table["device_end_ns"] >= 0)
    begin = np.where(
        timed, table["device_begin_ns"], np.where(table["begin_ns"] >= 0, table["begin_ns"], table["call_ns"])
    )
    end = np.where(timed, table["device_end_ns"], matched.end_ns)
    entered = matched.last_enter_ns
    begin = np.where((entered > begin) & (entered < end), entered, begin)
    groups = group_table(trace)
    size = GroupBy(table["group_hash"]).map(lambda group: len(groups[group].members))
    sent = table["message_bytes"] * _factor(trace, size)
    good = (end > begin) & (end < NEVER) & (sent > 0)
    devices, device = _devices(trace)
    names = {i: trace.text(code) for i, code in trace.processes.lookup("process_id", "host_code").items()}
    hosts = sorted(set(names.values()))
    host = GroupBy(table["process_id"]).map(lambda process: hosts.index(names[process]))
    return Expected(
        begin[good],
        end[good],
        sent[good],
        table["group_hash"][good],
        table["op_code"][good],
        device[good],
        host[good],
        devices,
        hosts,
    )


def _factor(trace: Trace, size: Int64) -> Floats:
    """Return the bytes that a rank sends (and receives, as mean over ranks) per byte of its input; 0 if unknown."""
    table = trace.collectives
    n = np.maximum(size, 1).astype(np.float64)
    ring = (n - 1) / n
    factors = {
        CollectiveOp.ALL_REDUCE: 2 * ring,
        CollectiveOp.ALL_GATHER: n - 1,
        CollectiveOp.REDUCE_SCATTER: ring,
        CollectiveOp.ALL_TO_ALL: ring,
        CollectiveOp.BROADCAST: ring,
        CollectiveOp.REDUCE: ring,
        CollectiveOp.SEND: np.full(len(n), 0.5),
        CollectiveOp.RECEIVE: np.full(len(n), 0.5),
    }
    out = np.zeros(len(n))
    for op, factor in factors.items():
        out = np.where(table["op_code"] == op, factor, out)
    # In-switch reduction: each rank sends its data once and the reduced share of its own, instead of twice around.
    details = trace.collective_details
    algorithms = np.array(
        [trace.text(code).startswith("NVLS") for code in details["algorithm_code"].tolist()], dtype=bool
    )
    in_switch = np.isin(table["collective_key"], details["collective_key"][algorithms])
    return np.where(in_switch & (table["op_code"] == CollectiveOp.ALL_REDUCE), (n + 1) / n, out)


def _devices(trace: Trace) -> tuple[list[str], Int64]:
    """Return UUIDs, and the index of each collective's device: of its stream, else its process's only device."""
    table, rows = trace.collectives, trace.devices
    uuid_of = {(r["process_id"], r["device_index"]): counted_gpu(trace, r) for r in rows.rows()}
    owned: dict[int, set[str]] = {}
    for (process, _), uuid in uuid_of.items():
        owned.setdefault(process, set()).add(uuid)
    for track in trace.tracks.take(trace.tracks["kind_code"] == TrackKind.COUNTER).rows():
        # Without the cuda collector, the sampled devices decide; a process samples only devices that it uses.
        sampled = _DEVICE.match(trace.text(track["name_code"]))
        if sampled and not len(rows):
            owned.setdefault(track["process_id"], set()).add(sampled.group(3))
    stream = {r["track_id"]: uuid_of.get((r["process_id"], r["device_index"]), "") for r in trace.streams.rows()}
    only = {process: next(iter(names)) for process, names in owned.items() if len(names) == 1}
    devices = sorted(set(uuid_of.values()) | {name for names in owned.values() for name in names})
    place = {name: number for number, name in enumerate(devices)}
    pairs = zip(table["process_id"].tolist(), table["stream_track_id"].tolist(), strict=True)
    return devices, int64([place.get(stream.get(s, "") or only.get(p, ""), -1) for p, s in pairs])


def moved_until(ts_ns: Int64, begin_ns: Int64, end_ns: Int64, amount: Floats) -> Floats:
    """Return the sum of amounts until each time, each amount spread evenly over its interval; times ascend."""
    if len(begin_ns) == 0:
        return np.zeros(len(ts_ns))
    rate = amount / (end_ns - begin_ns)
    turns = np.concatenate([begin_ns, end_ns])
    change = np.concatenate([rate, -rate])
    order = np.argsort(turns, kind="stable")
    turns, running = turns[order], np.cumsum(change[order])
    total = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(turns))])
    return np.asarray(np.interp(ts_ns, turns, total), dtype=np.float64)
