"""Name the cause of a late rank: its worker and file, kernel, phase, call, or the rank that it waited for.

Calls of a step thread on files include those that no wait covers, as reads that the page cache serves. The budget cuts
them by what the thread did inside; what a loop does with one file is one cause all the same:

    write()   [== copies ==][.. blocked ..]   fsync()  [...... blocked ......]     on one file
    kind      |-- python --||-- other ----|            |-------- other -------|
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, rows_of
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.idle_calls import call_names
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import READ_OPS, TraceIndex, kept_per_thread
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.stragglers.causes import CAUSES, COMPUTE, LAUNCH, PYTHON, RankTimes
from stashtrace.analysis.stragglers.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import NAMED_SPANS, NOT_FILES, BatchPhase, DeviceWork, IoOp, Phase, SpanKind, WaitOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

BETWEEN_PHASES = "between phases"


class Named(NamedTuple):
    """Process, worker, name and time behind a cause; -1 and empty where unknown."""

    process: int = -1
    worker: int = -1
    name: str = ""
    name_ns: int = -1


class Window(NamedTuple):
    """A rank's times, and the part of them to examine."""

    times: RankTimes
    begin_ns: int
    end_ns: int

    @property
    def time(self) -> TimeSet:
        """The window as a set."""
        return TimeSet.of([self.begin_ns], [self.end_ns])


class Namer:
    """Names what is behind causes."""

    def __init__(self, index: TraceIndex) -> None:
        self._index = index
        self._ways: dict[str, Callable[[Window, Window | None, TimeSet], Named]] = {
            "fetch": self._fetch,
            "prep": self._prep,
            "handoff": self._handoff,
            "compute": self._compute,
            "python": partial(self._loop_code, PYTHON),
            "checkpoint": self._checkpoint,
            "compile": self._compile,
            "straggler": self._straggler,
            "sync": self._device_call,
            "launch": self._launch,
            "other": self._other,
        }

    def name(self, cause: int, late: Window, other: Window | None) -> Named:
        """Return what the late rank did in the time of one cause."""
        process = late.times.thread.process_id
        way = self._ways.get(CAUSES[cause])
        if way is None:
            return Named(process)
        time = late.times.sets[cause] & late.time
        named = way(late, other, time)
        # A name that takes only a small part of the time does not explain it.
        small = 0 <= named.name_ns * POLICY.named_divisor < time.total_ns
        return Named(named.process, named.worker) if small and named.name else named

    def _batch(self, late: Window, time: TimeSet) -> tuple[int, int, TimeSet]:
        """Return process and worker of the batch that was awaited longest in this time, and when it was made."""
        thread, index = late.times.thread, self._index
        waits = batch_waits(index, thread)
        spent = time.within(waits.begin, waits.end)
        if not len(spent) or spent.max() <= 0:
            return -1, -1, TimeSet.empty()
        at = int(spent.argmax())
        process = int(waits.made_by[at])
        fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches_by_process.rows(process)
        begin, end = fetches["begin_ns"][rows], fetches["end_ns"][rows]
        inside = (begin < waits.end[at]) & (end > waits.begin[at])
        return process, int(waits.worker_id[at]), TimeSet.of(begin[inside], end[inside])

    def _fetch(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        process, worker, making = self._batch(late, time)
        io = self._index.io
        if process < 0 or not len(making):  # no loader: the step thread read for itself
            process, making = late.times.thread.process_id, time
        rows = self._index.io_by_process.rows(process)
        rows = rows[io.is_storage[rows] | io.is_receive[rows]]
        name, blocked = self._longest_path(rows, making)
        return Named(process, worker, name, max(blocked, self._in_file(process, name, making)))

    def _in_file(self, process: int, name: str, time: TimeSet) -> int:
        """Return the time in ns inside all reads of a file, including those served from memory.

        If a run is so large that its calls are still on disk, only calls that blocked are used.
        """
        trace = self._index.trace
        table, tracks = trace.notable_io if trace.streamed_io is not None else trace.io, trace.tracks
        if not name:
            return -1
        code, spent = trace.strings.find(name), []
        for track in np.sort(tracks["track_id"][tracks["process_id"] == process]).tolist():
            calls = table.take(rows_of(table["track_id"], track))
            on_file = (calls["path_code"] == code) & np.isin(calls["op_code"], READ_OPS)
            spent.append(TimeSet.of_rows(calls, on_file))
        return (TimeSet.united(*spent) & time).total_ns

    def _longest_path(self, rows: Int64, time: TimeSet) -> tuple[str, int]:
        io = self._index.io
        code, spent = _longest(io.path[rows], time.within(io.begin[rows], io.end[rows]))
        return (self._index.trace.text(code), spent) if code >= 0 else ("", -1)

    def _prep(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        process, worker, making = self._batch(late, time)
        if process < 0:
            return Named()
        io, rows = self._index.io, self._index.io_by_process.rows(process)
        rows = rows[io.is_storage[rows]]
        return Named(process, worker, "", (making - TimeSet.of(io.begin[rows], io.end[rows])).total_ns)

    def _handoff(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        process, worker, _ = self._batch(late, time)
        return Named(process, worker, "", time.total_ns)

    def _compute(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        process = late.times.thread.process_id
        kernels = self._index.kernels.rows(process)
        if len(kernels):
            kernel_names = self._kernels(late)
            names, apart = kernel_names, self._kernels(other) if other is not None else {}
        else:
            names, apart = self._phases(late), self._phases(other) if other is not None else {}
        more = {key: spent - apart.get(key, 0) for key, spent in names.items()}
        key = max(more, key=lambda k: (more[k], -k), default=-1)
        if key < 0 or more[key] <= 0:
            return Named(process)
        if len(kernels):
            return Named(process, -1, self._index.trace.text(key), more[key])
        return Named(process, -1, Phase(key).name.lower() if key else BETWEEN_PHASES, more[key])

    def _loop_code(self, cause: int, late: Window, other: Window | None, time: TimeSet) -> Named:
        """Name the annotation, or the file, in which the loop's code spends longer than that of the other rank."""
        process = late.times.thread.process_id
        for names_of in (self._annotations, self._files):
            apart = names_of(other, other.times.sets[cause] & other.time) if other is not None else {}
            more = {code: spent - apart.get(code, 0) for code, spent in names_of(late, time).items()}
            code = max(more, key=lambda key: (more[key], -key), default=-1)
            if code > 0 and more[code] > 0:
                if names_of == self._files:
                    return (
                        self._on_file(late, code)
                        if more[code] * POLICY.named_divisor >= time.total_ns
                        else Named(process)
                    )
                return Named(process, -1, self._index.trace.text(code), more[code])
        return Named(process)

    def _launch(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        named = self._loop_code(LAUNCH, late, other, time)
        return named if named.name else self._device_call(late, other, time)

    def _annotations(self, window: Window, time: TimeSet) -> dict[int, int]:
        """Return how long the annotations of a step thread lie in a time, by name code."""
        spans, rows = self._index.trace.spans, self._index.spans.rows(window.times.thread.track_id)
        rows = rows[np.isin(spans["kind_code"][rows], NAMED_SPANS)]
        return _sums(spans["name_code"][rows], time.within(spans["begin_ns"][rows], spans["end_ns"][rows]))

    def _files(self, window: Window, time: TimeSet) -> dict[int, int]:
        """Return how long the calls of a step thread on files lie in a time, by path code."""
        calls = file_calls(self._index, window.times.thread)
        return _sums(calls.path, time.within(calls.begin, calls.end))

    def _on_file(self, window: Window, code: int) -> Named:
        """Name a file, and the time in all calls on it in a window, whatever kinds of time they are."""
        thread = window.times.thread
        calls = file_calls(self._index, thread)
        spent = (calls.take(calls.path == code).time & window.time).total_ns
        return Named(thread.process_id, -1, self._index.trace.text(code), spent)

    def _kernels(self, window: Window) -> dict[int, int]:
        kernels, rows = self._index.trace.kernels, self._index.kernels.rows(window.times.thread.process_id)
        rows = rows[~np.isin(kernels["work_code"][rows], (DeviceWork.COMMUNICATION, DeviceWork.SYNCHRONIZATION))]
        spent = window.time.within(kernels["begin_ns"][rows], kernels["end_ns"][rows])
        return _sums(kernels["name_code"][rows], spent)

    def _phases(self, window: Window) -> dict[int, int]:
        """Return the compute time of a window by phase; 0 is the time between phases."""
        phases, rows = self._index.trace.phases, outer_phase_rows(self._index, window.times.thread)
        time = window.times.sets[COMPUTE] & window.time
        spent = _sums(phases["phase_code"][rows], time.within(phases["begin_ns"][rows], phases["end_ns"][rows]))
        spent[0] = time.total_ns - sum(spent.values())
        return spent

    def _checkpoint(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        io, rows = self._index.io, self._index.io_by_track.rows(late.times.thread.track_id)
        return Named(late.times.thread.process_id, -1, *self._longest_path(rows[io.is_storage[rows]], time))

    def _compile(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        spans, rows = self._index.trace.spans, self._index.spans.rows(late.times.thread.track_id)
        rows = rows[spans["kind_code"][rows] == SpanKind.COMPILE]
        code, spent = _longest(spans["name_code"][rows], time.within(spans["begin_ns"][rows], spans["end_ns"][rows]))
        process = late.times.thread.process_id
        return Named(process, -1, self._index.trace.text(code), spent) if code >= 0 else Named(process)

    def _straggler(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        tagged = rank_layers(self._index, late.times.thread).late
        rank, spent = _longest(tagged.tag, time.within(tagged.begin, tagged.end))
        return Named(late.times.thread.process_id, -1, f"rank {rank}", spent) if rank >= 0 else Named()

    def _device_call(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        calls, rows = self._index.trace.device_calls, self._index.device_calls.rows(late.times.thread.process_id)
        place, called = call_names(self._index.trace)
        best, spent = _longest(place[rows], time.within(calls["begin_ns"][rows], calls["end_ns"][rows]))
        process = late.times.thread.process_id
        return Named(process, -1, called[best], spent) if best >= 0 else Named(process)

    def _other(self, late: Window, other: Window | None, time: TimeSet) -> Named:
        """Name a blocking call of the step thread that has no separate kind."""
        thread, index = late.times.thread, self._index
        waits, rows = index.trace.waits, index.waits.rows(thread.track_id)
        code, spent = _longest(waits["wait_code"][rows], time.within(waits["begin_ns"][rows], waits["end_ns"][rows]))
        table = index.trace.notable_io
        calls = rows_of(table["track_id"], thread.track_id)
        op, of_op = _longest(table["op_code"][calls], time.within(table["begin_ns"][calls], table["end_ns"][calls]))
        files = self._files(late, time)
        file = max(files, key=lambda code: (files[code], -code), default=-1)
        if file >= 0 and files[file] * POLICY.named_divisor >= time.total_ns and files[file] > max(spent, of_op // 2):
            return self._on_file(late, file)
        if op >= 0 and of_op > spent:
            return Named(thread.process_id, -1, IoOp(op).name.lower(), of_op)
        return Named(thread.process_id, -1, WaitOp(code).name.lower(), spent) if code >= 0 else Named(thread.process_id)


def _sums(key: np.ndarray, spent: Int64) -> dict[int, int]:
    by_key = GroupBy(key)
    return dict(zip(by_key.values.tolist(), by_key.sum(spent).tolist(), strict=True))


def _longest(key: np.ndarray, spent: Int64) -> tuple[int, int]:
    """Return the key with the most time, and the time; (-1, -1) if there is none."""
    sums = {k: s for k, s in _sums(int64(key), spent).items() if s > 0 and k >= 0}
    best = max(sums, key=lambda k: (sums[k], -k), default=-1)
    return best, sums.get(best, -1)


#: Ends of the names of files that SQLite keeps next to a database.
_JOURNALS = ("journal", "wal", "shm")


@dataclass(frozen=True, slots=True)
class FileCalls:
    """Calls of one step thread on files with a name, by begin."""

    begin: Int64
    end: Int64
    path: Int64
    op: Int64

    def take(self, rows: npt.NDArray[np.integer] | Bools) -> FileCalls:
        """Return some of the calls."""
        return FileCalls(self.begin[rows], self.end[rows], self.path[rows], self.op[rows])

    @property
    def time(self) -> TimeSet:
        """When the thread was in any of them."""
        return TimeSet.of(self.begin, self.end)


def as_one_database(trace: Trace, paths: Int64) -> Int64:
    """Return codes of paths with those of a database's journals replaced by that of the database.

    SQLite writes a change to ``x.db-journal`` or ``x.db-wal`` first: one program writes one database.
    """
    out = int64(paths.astype(np.int64))
    for code in np.unique(paths).tolist():
        base, dash, kind = trace.text(code).rpartition("-")
        of_base = trace.strings.find(base) if dash and kind in _JOURNALS else -1
        if of_base >= 0:
            out[paths == code] = of_base
    return out


@kept_per_thread
def file_calls(index: TraceIndex, thread: StepThread) -> FileCalls:
    """Return all calls of a step thread on files with a name."""
    names = ("begin_ns", "end_ns", "path_code", "op_code")
    parts: list[list[Int64]] = [[int64([]) for _ in names]]
    for table in _pieces(index.trace, thread):
        part = table.take(np.arange(*rows_of(table["track_id"], thread.track_id).indices(len(table))))
        named = (part["io_flags"] & NOT_FILES) == 0
        named &= (part["path_code"] != index.trace.strings.find("")) & (part["end_ns"] > part["begin_ns"])
        parts.append([int64(part[name][named]) for name in names])
    begin, end, path, op = (int64(np.concatenate(column)) for column in zip(*parts, strict=True))
    return FileCalls(begin, end, as_one_database(index.trace, path), op)


def _pieces(trace: Trace, thread: StepThread) -> Iterator[Table]:
    """Give the I/O calls of a process, from the disk where they are not in memory."""
    streamed = trace.streamed_io
    if streamed is None:
        yield trace.io
    elif thread.track_id < len(streamed.counts) and streamed.counts[thread.track_id]:
        yield from streamed.pieces((thread.process_id,))
