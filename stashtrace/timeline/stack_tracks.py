"""Python code on the timeline: stack samples, of which viewers draw flame graphs, and the user's functions as slices.

samples of the step thread      a   a   b   .   a       b in a call that waits: both ends of it are known
functions                     [ a     ][ b    ][ a ]    as long as samples stay in one function; calls exactly
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stashtrace import _native
from stashtrace._native import intervals
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.lines.thread_places import exact_calls
from stashtrace.analysis.lines.user_frames import OURS, Places, innermost_wanted, owners, places, worker_loops
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.rows_by_rank import RankRows, Thread, TraceRows
from stashtrace.timeline.tracks import NO_VALUE, Line, Order, Piece, Texts, TrackTree, code_where

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
        self._by_key = GroupBy(frames["process_id"], frames["frame_key"])
        self._shown, caller = _shown_frames(rows.trace, self._by_key)
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


def _shown_frames(trace: Trace, by_key: GroupBy) -> tuple[Int64, Int64]:
    """Return which frame stands for each, -1 for none, and the caller of each: frames of this recorder are left out.
    Frames that call each other in a circle, as a damaged file may say, have no caller."""
    frames, loops = trace.frames, worker_loops(trace)
    caller = by_key.row_of(frames["process_id"], frames["caller_key"])
    caller = np.where(loops | np.append(loops, False)[caller], -1, caller)
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
            own = RankRows(rows, rank)
            samples, spans = own.table("stack_samples"), own.table("stack_spans")
            by_thread, spans_by_thread = RowsBy(samples["track_id"]), RowsBy(spans["track_id"])
            for thread in own.threads.values():
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
    A sample in a call says nothing that the call does not: behind it, the caller goes on until the next sample."""
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
