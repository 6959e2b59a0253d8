"""What was sampled on the timeline: counters, stacks, of which viewers draw flame graphs, and the user's functions.

Cumulative counters (names that end in `_total`) become rates, because a line that only rises shows nothing.

samples of the step thread      a   a   b   .   a       b in a call that waits: both ends of it are known
functions                     [ a     ][ b    ][ a ]    as long as samples stay in one function; calls exactly
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stashtrace import _native
from stashtrace._native import intervals
from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.devices.launches import first_of_each, waiting
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.lines.thread_places import exact_calls
from stashtrace.analysis.lines.user_frames import OURS, Places, callers_of, innermost_wanted, owners, places
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import TrackKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.device_tracks import Groups, host_lead, on_device
from stashtrace.timeline.rows_by_rank import RankRows, Thread, TraceRows
from stashtrace.timeline.tracks import NO_VALUE, Doubles, Ints, Line, Order, Piece, Texts, TrackTree, code_where

#: Our counters with a line, in this order: name (before any ``.interface``) -> title. Users' counters follow by name.
_SHOWN = {
    "process_user_ns_total": "CPU user",
    "process_system_ns_total": "CPU system",
    "thread_runqueue_ns_total": "waits for a CPU",
    "process_read_bytes_total": "disk read",
    "process_write_bytes_total": "disk write",
    "net_receive_bytes_total": "net in",
    "net_transmit_bytes_total": "net out",
    "rdma_receive_bytes_total": "RDMA in",
    "rdma_transmit_bytes_total": "RDMA out",
    "host_tcp_retransmits_count_total": "host TCP retransmits",
    "host_psi_cpu_some_ns_total": "host pressure CPU",
    "host_psi_io_some_ns_total": "host pressure I/O",
    "host_psi_memory_some_ns_total": "host pressure memory",
    "host_iowait_ns_total": "host I/O wait",
    "host_steal_ns_total": "host steal",
    "process_major_faults_count_total": "major faults",
    "process_resident_bytes": "resident memory",
    "host_page_cache_bytes": "host page cache",
}
_PLACE = {name: place for place, name in enumerate(_SHOWN)}
_OURS = ("process_", "thread_", "host_", "net_", "rdma_", "nvml_")
#: Unit of a cumulative sample -> unit of its rate, and the rate of an increase by one in a nanosecond.
_RATES = {"ns": ("%", 100.0), "bytes": ("B/s", 1e9), "count": ("/s", 1e9), "joules": ("W", 1e9)}
#: Unit of any other sample -> unit and factor of the shown value.
_VALUES = {
    "ns": ("ms", 1e-6),
    "bytes": ("B", 1.0),
    "count": ("", 1.0),
    "ratio": ("%", 100.0),
    "watts": ("W", 1.0),
    "hz": ("Hz", 1.0),
    "celsius": ("°C", 1.0),
}
#: Beginning of the names of samples from a device, which is named after the dot.
_DEVICE = "gpu_"
#: Below the streams and communicators of a device.
_DEVICE_ORDER = 5000


def counter_layer(
    rows: RankRows, tree: TrackTree, encoder: _native.perfetto.Encoder, root: int, groups: Groups, sequence_id: int
) -> None:
    """Write the counters of a rank on a separate sequence, those of a device below it."""

    def write(parent: int, line: Line, unit: str, ts_ns: Ints, values: Doubles) -> None:
        encoder.counter(sequence_id, tree.counter(parent, line, unit), ts_ns, values)

    below = {
        counted_gpu(rows.trace, row): groups[row["process_id"], row["device_index"]]
        for row in rows.table("devices").rows()
    }
    of_rank = []
    for order, (_, title, unit, ts_ns, values) in enumerate(sorted(_readings(rows), key=lambda row: row[0])):
        words, _, uuid = title.partition(" · ")
        uuid, _, link = uuid.partition(":")
        if uuid in below:
            line = Line(f"{words} · link {link}" if link else words, _DEVICE_ORDER + order)
            write(below[uuid], line, unit, ts_ns, values)
        else:
            of_rank.append((title, unit, ts_ns, values))
    for (process, device), group in groups.items():
        ts_ns, values = host_lead(rows, process, device)
        if len(ts_ns):
            line = Line("host lead", _DEVICE_ORDER, "How long before the device reached an event the host recorded it")
            write(group, line, "ms", ts_ns, values * 1e-6)
        for place, (title, unit, about, ts_ns, values) in enumerate(device_queues(rows, process, device), 1):
            write(group, Line(title, _DEVICE_ORDER + place, about), unit, ts_ns, values)
    if not of_rank:
        return
    group = tree.group(
        root,
        Line(
            "counters",
            Order.COUNTERS,
            "Samples of /proc. A rate holds until the next sample; lines that stay at 0 are left out. A wait for a CPU "
            "counts when it ends, so one longer than a period shows as more than 100 %.",
        ),
    )
    for order, (title, unit, ts_ns, values) in enumerate(of_rank):
        write(group, Line(title, order), unit, ts_ns, values)


def _readings(rows: RankRows) -> Iterator[tuple[tuple[int, int, str], str, str, Ints, Doubles]]:
    """Yield (sort key, title, unit, times, values) of each counter with a line."""
    tracks = rows.table("tracks")
    tracks = tracks.take(tracks["kind_code"] == TrackKind.COUNTER)
    counters = rows.table("counters").sort_by("track_id", "ts_ns")
    first = np.searchsorted(counters["track_id"], tracks["track_id"])
    last = np.searchsorted(counters["track_id"], tracks["track_id"], side="right")
    worker_of = {p["process_id"]: p["worker_id"] for p in rows.processes.rows()}
    main_threads = {(t.process_id, t.native_id): t.label for t in rows.threads.values() if t.is_main}
    for row, begin, end in zip(tracks.rows(), first.tolist(), last.tolist(), strict=True):
        full_name = rows.trace.text(row["name_code"])
        name, _, interface = full_name.partition(".")
        worker = worker_of[row["process_id"]]
        owner = f"worker {worker}" if worker >= 0 else ""
        if name.startswith(_DEVICE) and worker < 0:
            quantity = name.removeprefix(_DEVICE).removesuffix("_total").replace("_", " ")
            title, key = f"{quantity} · {interface}", (len(_PLACE), -1, full_name)
        elif name.startswith(_OURS):
            if name not in _SHOWN or (worker >= 0 and name.startswith(("host_", "net_", "rdma_"))):
                continue
            if name.startswith("thread_"):
                owner = main_threads.get((row["process_id"], row["native_id"]), "")
                if not owner:
                    continue
            title = " ".join(part for part in (_SHOWN[name], interface) if part)
            key = (_PLACE[name], worker, title)
        else:
            name, title = full_name, full_name.removesuffix("_total").replace("_", " ")
            key = (len(_PLACE), worker, title)
        unit, ts_ns, values = reading(
            name, rows.trace.text(row["unit_code"]), counters["ts_ns"][begin:end], counters["value"][begin:end]
        )
        if len(ts_ns) and (values != 0).any():
            yield key, f"{title} · {owner}" if owner else title, unit, ts_ns, values


def reading(name: str, unit: str, ts_ns: Ints, value: Doubles) -> tuple[str, Ints, Doubles]:
    """Return unit, times and values for people: rates of cumulative samples. Viewers add the K, M and G."""
    if not name.endswith("_total"):
        shown, factor = _VALUES.get(unit, (unit, 1.0))
        return shown, ts_ns, value * factor
    step = np.maximum(np.diff(ts_ns), 1)
    shown, factor = _RATES.get(unit, (f"{unit}/s", 1e9))
    return shown, ts_ns[:-1], np.maximum(np.diff(value), 0) / step * factor


# Counter tracks of a device that are derived from its work: launches that wait, bytes of collectives under way.

#: More moments than this are thinned: each stretch keeps its largest value.
_MOMENTS_AT_MOST = 200_000

#: (title, unit, description, times, values)
Series = tuple[str, str, str, Ints, Doubles]


def device_queues(rows: RankRows, process: int, device: int) -> Iterator[Series]:
    """Yield the launches that waited for a device, and the bytes that it moved between ranks."""
    kernels = rows.table("kernels")
    known = np.flatnonzero(on_device(kernels, process, device) & (kernels["launch_ns"] >= 0))
    if len(known):
        known = known[np.argsort(kernels["begin_ns"][known], kind="stable")]
        launch, begin = kernels["launch_ns"][known], kernels["begin_ns"][known]
        first = first_of_each(launch)
        moments, depth = _thin(*waiting(launch[first], begin[first]))
        about = "Launches whose work had not begun. At 0 the device waits for the host; 1,024 block the host."
        yield "launches waiting", "", about, moments, depth
    bytes_moved = _bytes_under_way(rows, process, device)
    if bytes_moved is not None:
        about = "Payload of the collectives that were called and had not ended on the device"
        yield "bytes under way", "B", about, *_thin(*bytes_moved)


def _bytes_under_way(rows: RankRows, process: int, device: int) -> tuple[Ints, Ints] | None:
    table, streams = rows.table("collectives"), rows.table("streams")
    of_device = streams["track_id"][on_device(streams, process, device)]
    is_own = (table["process_id"] == process) & np.isin(table["stream_track_id"], of_device)
    chosen = np.flatnonzero(is_own & (table["device_end_ns"] >= 0) & (table["message_bytes"] > 0))
    if not len(chosen):
        return None
    call, end, size = (table[c][chosen] for c in ("call_ns", "device_end_ns", "message_bytes"))
    changes = GroupBy(np.concatenate([call, np.maximum(end, call)]))
    return changes.values, np.cumsum(changes.sum(np.concatenate([size, -size])))


def _thin(moments: Ints, values: Ints) -> tuple[Ints, Doubles]:
    every = -(-len(moments) // _MOMENTS_AT_MOST)
    if every > 1:
        moments, values = moments[::every], GroupBy(np.arange(len(moments)) // every).max(values)
    return moments, values.astype(np.float64)


Slices = _native.perfetto.Slices

#: A sample stands for the time until the next one, unless that is this many times as far as usual: then for the usual.
_FAR_TIMES = 5
_ABOUT = (
    "Functions of your code by samples of {}, 20 ms apart, further where the machine is busy; calls of a millisecond"
    " and more that wait or move files exactly. What they call in libraries is theirs, and the argument `in`."
)


class StackSamples:
    """Stack samples of a trace in an export."""

    def __init__(self, rows: TraceRows, at_most: int) -> None:
        """Number the frames; of more samples than ``at_most``, each n-th of a thread is written, for the least n."""
        self._rows = rows
        frames = rows.trace.frames
        self._by_key, caller = callers_of(rows.trace)
        self._shown, caller = _shown_frames(rows.trace, caller)
        name, path, line = (frames[column] for column in ("name_code", "path_code", "line"))
        number = GroupBy(name, path, line).number
        self._native = _native.perfetto.Frames(caller, name, path, line, number, rows.texts.native)
        self.every = max(-(-len(rows.trace.stack_samples) // max(at_most, 1)), 1)

    def write(self, own: RankRows, tree: TrackTree, pid: int, sequences: Iterator[int]) -> None:
        """Write the samples of a rank, thread by thread; ``pid``: its process on the timeline."""
        samples = own.table("stack_samples")
        if self._rows.window is not None:
            samples = samples.take(self._rows.window.touches(samples["ts_ns"], samples["ts_ns"]))
        by_thread = RowsBy(samples["track_id"])
        for thread in own.threads.values():
            mine = samples.take(by_thread.rows(thread.track_id)[:: self.every]).sort_by("ts_ns")
            row = self._by_key.row_of(mine["process_id"], mine["frame_key"])
            shown = np.append(self._shown, -1)[row]
            known = shown >= 0
            if known.any():
                ts_ns = mine["ts_ns"][known]
                tree.samples(next(sequences), pid, thread.label, self._native, ts_ns, shown[known])


def _shown_frames(trace: Trace, caller: Int64) -> tuple[Int64, Int64]:
    """Return which frame stands for each, -1 for none, and the caller of each: frames of this recorder are left out.

    Frames that call each other in a circle, as a damaged file may say, have no caller.
    """
    shown = innermost_wanted(owners(trace) != OURS, caller)
    above = np.append(shown, -1)[caller]
    none = len(above)
    at = np.append(np.where(above >= 0, above, none), none)
    for _ in range(none.bit_length()):
        at = at[at]
    return shown, int64(np.where(at[:-1] == none, above, -1))


@dataclass(frozen=True, slots=True)
class _Functions:
    """What a thread was in, in order of time: no two overlap."""

    begin_ns: Int64
    end_ns: Int64
    #: Number of the place.
    place: Int64
    #: 0 of a call that was recorded exactly.
    samples_count: Int64


class Functions:
    """The user's functions that step threads were in."""

    def __init__(self, rows: TraceRows, chosen: Iterable[int], at_most: int) -> None:
        """Find them; of more than ``at_most``, none is kept."""
        self._places = places(rows.trace)
        self.found: dict[int, list[tuple[Thread, _Functions]]] = {}
        for rank in chosen:
            rank_rows = RankRows(rows, rank)
            samples, spans = rank_rows.table("stack_samples"), rank_rows.table("stack_spans")
            by_thread, spans_by_thread = RowsBy(samples["track_id"]), RowsBy(spans["track_id"])
            for thread in rank_rows.threads.values():
                if thread.is_step:
                    mine = samples.take(by_thread.rows(thread.track_id)).sort_by("ts_ns")
                    calls = spans.take(spans_by_thread.rows(thread.track_id))
                    found = _in_window(rows, _functions(self._places, mine, calls))
                    self.found.setdefault(rank, []).append((thread, found))
        self.count = sum(len(one.begin_ns) for each in self.found.values() for _, one in each)
        self.are_left_out = self.count > at_most
        if self.are_left_out:
            self.found, self.count = {}, 0

    def slices(self, rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
        """Return the slices of a rank, a line for each of its step threads."""
        lines: dict[int, Line] = {}
        pieces = []
        for thread, found in self.found.get(rows.rank, []):
            lines[thread.track_id] = Line(
                "functions", Order.FUNCTIONS + thread.order, _ABOUT.format(thread.description)
            )
            pieces.append(self._piece(rows, thread.track_id, found))
        return tree.add(root, lines, pieces)

    def _piece(self, rows: RankRows, track: int, found: _Functions) -> Piece:
        at, place = found.place, self._places
        key = np.full(len(at), track, dtype=np.int64)
        names, name = _function_names(rows.trace, place)
        piece = Piece(key, found.begin_ns, found.end_ns, name[at], names)
        piece.texts["file"] = (code_where(place.path_code[at] > 0, place.path_code[at]), rows.texts)
        piece.ints["line"] = np.where(place.line[at] > 0, place.line[at], NO_VALUE)
        calls = GroupBy(place.leaf_code)  # separate texts, younger than those of the trace's rows
        leaf = Texts([rows.trace.text(code) for code in calls.values.tolist()] or [""])
        piece.texts["in"] = (code_where(place.leaf_code[at] > 0, calls.number[at]), leaf)
        piece.ints["samples"] = np.where(found.samples_count > 0, found.samples_count, NO_VALUE)
        return piece


def _function_names(trace: Trace, place: Places) -> tuple[Texts, Int64]:
    """Return names of functions, and the code of each place's; a module has that of its file."""
    functions = GroupBy(place.function_code, place.path_code)
    named = []
    for function, path in zip(*(keys.tolist() for keys in functions.keys), strict=True):
        name = trace.text(function)
        named.append(trace.text(path).rpartition("/")[2] if name == "<module>" else name.replace(".<locals>", ""))
    return Texts(named or [""]), functions.number


def _functions(places: Places, samples: Table, spans: Table) -> _Functions:
    """Return what a thread was in: calls exactly, the rest as its samples, which are in order of time, say."""
    exact, row = exact_calls(spans)
    of_span = places.of(spans["process_id"], spans["frame_key"])[row[exact.tag]]
    calls = TimeSet(exact.begin, exact.end)
    begin, end, place, count = _stays(places, samples, calls)
    first, last, run = (TimeSet(begin, end) - calls).pieces(begin, end)
    known = of_span >= 0
    parts = (
        (np.append(exact.begin[known], first), np.append(exact.end[known], last)),
        (np.append(of_span[known], place[run]), np.append(0 * of_span[known], count[run])),
    )
    order = np.argsort(parts[0][0], kind="stable")
    return _Functions(*(int64(column[order]) for pair in parts for column in pair))


def _stays(places: Places, samples: Table, calls: TimeSet) -> tuple[Int64, Int64, Int64, Int64]:
    """Return begin, end, place and count of samples of each stay in one function between calls.

    A sample in a call says nothing that the call does not: behind it, the caller goes on until the next sample.
    """
    usual = int(np.median(np.diff(samples["ts_ns"]))) if len(samples) > 1 else 0
    samples = samples.take(intervals.locate(calls.begin, calls.end, samples["ts_ns"]) < 0)
    moment = samples["ts_ns"]
    if not len(moment):
        return int64([]), int64([]), int64([]), int64([])
    place = places.of(samples["process_id"], samples["frame_key"])
    until = np.append(moment[1:], moment[-1] + usual)
    is_far = until - moment - calls.within(moment, until) > _FAR_TIMES * usual
    until = np.where(is_far, moment + usual, until)
    of_sample = np.append(GroupBy(places.function_code, places.path_code).number, -1)[place]
    stays = GroupBy.runs(of_sample, np.append(0, np.cumsum(is_far)[:-1]), np.searchsorted(calls.begin, moment))
    lines = GroupBy(stays.number, place)
    longest = lines.keys[1][GroupBy(lines.keys[0]).argmax(lines.sizes)]
    begin, end = stays.min(moment), stays.max(until)
    kept = (longest >= 0) & (end > begin)
    return begin[kept], end[kept], longest[kept], stays.sizes[kept]


def _in_window(rows: TraceRows, found: _Functions) -> _Functions:
    if rows.window is None:
        return found
    inside = rows.window.touches(found.begin_ns, found.end_ns)
    columns = (found.begin_ns, found.end_ns, found.place, found.samples_count)
    return _Functions(*(column[inside] for column in columns))
