"""Steps, batches, phases, operators and annotations of the host in a Kineto file.

main thread      [ProfilerStep#5 .................................][ProfilerStep#6 ...      -> spans, kind STEP
                  [enumerate(DataLoader)..__next__]  [Optimizer.step#SGD.step]              -> batches, phases
autograd thread                       [evaluate_function: ..] [evaluate_function: ..]       -> one backward

Operators, and the Python functions between them, are read in a second pass, of files without work of a device:

    thread     [train.py(20): step .............................................]
               [sample .......................][aten::mm][aten::add]   [log ....]
    spans      [ sample                       ][ operators         ]   [ log    ]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.importers.collective_names import CHECKPOINT
from stashtrace.importers.import_context import Bools, Int64, is_nested, stretches
from stashtrace.importers.kineto.device import DeviceRows
from stashtrace.importers.kineto.events import EventRows, FileRows, KinetoFile, ThreadEvents, extent_of
from stashtrace.schema.kinds import (
    MAIN_PROCESS,
    OPERATORS,
    UNSEEN_WORKER,
    BatchPhase,
    Phase,
    PhaseFlag,
    Severity,
    SpanKind,
    ThreadRole,
)
from stashtrace.schema.trace import WHOLE_RECORDING

_STEP = re.compile(r"^ProfilerStep\s*#?\s*(\d+)")
#: What torch records around the compilation of a function, and of its backward when that first runs.
_COMPILES = re.compile(r"^(_compile\b.*|backward\._backward_impl) \(dynamo_timed\)$")
_COMPILE_ID = re.compile(r"^entire_\w+_compile_data: .*\bcompile_id=\d{1,9}/(\d{1,9})")
_LOADER = re.compile(r"^enumerate\(DataLoader\)#")
_ONE_PROCESS = re.compile(r"SingleProcess")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ZERO = re.compile(r"^Optimizer\.zero_grad#")
_FORWARD = re.compile(r"^(## )?forward( ##)?$|^(DistributedDataParallel|FullyShardedDataParallel)\.forward$")
_BACKWARD = re.compile(r"^(## )?backward( ##)?$")
#: Different clocks stamp the host's events and the end of the recording.
_CLOCK_SLACK_NS = 100_000
#: End of a recording whose end is unknown.
_NEVER_NS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the file by number, in order of time; they do not overlap."""

    number: Int64
    begin_ns: Int64
    end_ns: Int64

    def at(self, moments: Int64) -> Int64:
        """Return the place of the last step that began before each moment; -1 before the first step."""
        return np.searchsorted(self.begin_ns, moments, side="right") - 1

    def numbers_at(self, places: Int64, before_first: int) -> Int64:
        """Return the number of the step at each place; ``before_first`` for a negative place."""
        return np.where(places >= 0, np.append(self.number, before_first)[places], before_first)


def add_host_side(rows: FileRows, work: DeviceRows) -> Steps:
    """Fill ``spans``, ``batches`` and ``phases``; return the steps."""
    notes = rows.file.rows["notes"].timed()
    notes = notes.take(np.argsort(notes.begin_ns, kind="stable"))
    track = rows.threads(notes.tid)
    is_step, is_load, is_update, is_zero, is_forward, is_backward, is_save = (
        rows.file.matching(notes.name, pattern.search)
        for pattern in (_STEP, _LOADER, _OPTIMIZER, _ZERO, _FORWARD, _BACKWARD, CHECKPOINT)
    )
    until_ns = _recorded_until(rows.file, notes.take(is_step))
    steps, main = _steps(rows, notes, track, is_step, until_ns)
    # An annotation that was open when the recording ended lasts, in the file, until the recording was processed.
    notes = replace(notes, end_ns=np.maximum(np.minimum(notes.end_ns, until_ns), notes.begin_ns))
    _add_batches(rows, notes.take(is_load), track[is_load])
    code = np.select(
        [is_update, is_forward, is_backward, is_save],
        [int(Phase.OPTIMIZER), int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.CHECKPOINT)],
        default=0,
    )
    if main < 0:
        main = _main_thread(track, is_load | is_update, work)
    aside = is_save & (track != main)  # a thread that writes while steps go on
    _add_phases(rows, notes.take(code > 0), track[code > 0], code[code > 0], aside[code > 0])
    if main >= 0:
        rows.context.tracks.assign_role(main, ThreadRole.STEP)
        if not is_backward.any():
            marks = notes.begin_ns[is_update | is_forward | is_load | is_step]
            # Between two messages of a pipeline is the backward pass of one micro-batch.
            messages = rows.file.rows["messages"].timed()
            sent = messages.begin_ns[rows.threads(messages.tid) == main]
            _add_gradients(rows, main, np.sort(np.concatenate([marks, sent])))
        if not len(steps.number) and not is_update.any() and np.count_nonzero(is_load) < 2:
            steps = _whole_recording(rows, main, until_ns)
    others = ~(is_step | is_load | is_update | is_zero | is_forward | is_backward | is_save)
    _add_spans(rows, notes.take(others), track[others])
    return steps


def _recorded_until(file: KinetoFile, steps: EventRows) -> int:
    """Return the end of the recording, with the slack of its clock; a far moment if the file does not say."""
    until_ns = file.recorded_until_ns
    first = int(steps.begin_ns.min()) if len(steps) else 0
    # A mark before all steps is of another clock.
    return until_ns + _CLOCK_SLACK_NS if until_ns is not None and until_ns > first else _NEVER_NS


def _steps(rows: FileRows, notes: EventRows, track: Int64, is_step: Bools, until_ns: int) -> tuple[Steps, int]:
    """Add the steps that torch.profiler marked; return them and the track of their thread.

    A step ends where its successor begins. A step that was open when the recording ended is left out, or cut if no step
    is whole; a loss row says so.
    """
    marks = notes.take(is_step)
    number = rows.file.coded(marks.name, lambda name: int(m[1]) if (m := _STEP.match(name)) else -1)
    # Each thread that took part may have recorded the step; the longest record is the loop's.
    order = np.lexsort((marks.end_ns, number))
    last = np.append(number[order][1:] != number[order][:-1], True) if len(order) else np.zeros(0, dtype=bool)
    order = order[last]
    order = order[np.argsort(marks.begin_ns[order], kind="stable")]
    number, begin, end = number[order], marks.begin_ns[order], marks.end_ns[order].copy()
    if not len(number):
        return Steps(number, begin, end), -1
    follows = number[1:] == number[:-1] + 1
    end[:-1] = np.where(follows, begin[1:], np.minimum(end[:-1], begin[1:]))
    step_track, names = track[is_step][order], marks.name[order]
    whole = marks.end_ns[order] <= until_ns
    if not whole.all():
        first, *more = np.flatnonzero(~whole).tolist()
        elapsed_ns = max(until_ns - _CLOCK_SLACK_NS - int(begin[first]), 0)
        if not whole.any():
            fate = ", and no step is whole: what was recorded of it counts as a step"
        elif more:
            fate = f": that step and {len(more)} behind it are not counted"
        else:
            fate = ": that step is not counted"
        rows.context.doubt_cut_step(rows.process_id, elapsed_ns, f"step {number[first]}{fate}")
        whole[0] |= not whole.any()
        end = np.maximum(np.minimum(end, until_ns - _CLOCK_SLACK_NS), begin)
        number, begin, end, step_track, names = number[whole], begin[whole], end[whole], step_track[whole], names[whole]
    rows.context.add(
        "spans",
        begin_ns=begin,
        end_ns=end,
        track_id=step_track,
        kind_code=int(SpanKind.STEP),
        name_code=rows.codes(names),
        value=number,
    )
    return Steps(number, begin, end), int(step_track[0])


def _whole_recording(rows: FileRows, main: int, until_ns: int) -> Steps:
    """Add one step for the whole recording, in which nothing says where steps begin."""
    tables = ("kernels", "talks", "copies", "memsets", "calls", "notes")
    work = [rows.file.rows[name] for name in tables if len(rows.file.rows[name])]
    window = rows.file.rows["window"]
    if not len(window) and not work:
        return Steps(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    begin, end = extent_of([window] if len(window) else work)
    if until_ns - _CLOCK_SLACK_NS > begin:
        end = min(end, until_ns - _CLOCK_SLACK_NS)
    rows.context.add(
        "spans",
        begin_ns=begin,
        end_ns=np.array([end]),
        track_id=main,
        kind_code=int(SpanKind.STEP),
        name_code=rows.context.code(WHOLE_RECORDING),
        value=0,
    )
    rows.context.lose(
        "no_steps_in_file",
        process_id=rows.process_id,
        severity=Severity.INFO,
        advice="nothing says where steps begin: the whole recording counts as one; call prof.step() in the loop",
    )
    return Steps(np.array([0]), np.array([begin]), np.array([end]))


def _main_thread(track: Int64, in_loop: Bools, work: DeviceRows) -> int:
    """Return the thread of the loop: the one with most updates and batches, else with most launches, else -1."""
    for candidates in (track[in_loop], work.launch_threads, track):
        if len(candidates):
            values, counts = np.unique(candidates, return_counts=True)
            return int(values[counts.argmax()])
    return -1


def _add_batches(rows: FileRows, loads: EventRows, track: Int64) -> None:
    """Add the waits for batches. The file does not say who made these, nor how."""
    if not len(loads):
        return
    iterators, index = np.unique(loads.name, return_inverse=True)
    number = np.empty(len(loads), dtype=np.int64)
    for at in range(len(iterators)):
        number[index == at] = np.arange(np.count_nonzero(index == at))
    alone = rows.file.matching(loads.name, _ONE_PROCESS.search)
    rows.context.add(
        "batches",
        begin_ns=loads.begin_ns,
        end_ns=loads.end_ns,
        track_id=track,
        process_id=np.full(len(loads), rows.process_id),
        loader_id=(index + 1).astype(np.uint64),
        batch_index=number,
        worker_id=np.where(alone, MAIN_PROCESS, UNSEEN_WORKER),
        phase_code=int(BatchPhase.WAIT),
    )


def _add_phases(rows: FileRows, notes: EventRows, track: Int64, code: Int64, aside: Bools) -> None:
    if not len(notes):
        return
    order = np.lexsort((-notes.end_ns, notes.begin_ns, track))
    begin, end, tracks = notes.begin_ns[order], notes.end_ns[order], track[order]
    rows.context.add(
        "phases",
        begin_ns=begin,
        end_ns=end,
        track_id=tracks,
        process_id=np.full(len(order), rows.process_id),
        phase_code=code[order],
        phase_flags=is_nested(tracks, begin, end) * int(PhaseFlag.NESTED) | aside[order] * int(PhaseFlag.BACKGROUND),
        name_code=rows.codes(notes.name[order], _class_name),
    )


def _class_name(name: str) -> str:
    """Return ``SGD`` of ``Optimizer.step#SGD.step``, the class of ``DistributedDataParallel.forward``."""
    return name.partition("#")[2].removesuffix(".step") if name.startswith("Optimizer.") else name.partition(".")[0]


def _add_gradients(rows: FileRows, main: int, borders: Int64) -> None:
    """Add backward passes: from the first to the last operator of the autograd engine between marks of the loop."""
    work = rows.file.rows["gradients"].timed()
    if not len(work):
        return
    place = np.searchsorted(borders, work.begin_ns, side="right")
    values, inverse = np.unique(place, return_inverse=True)
    begin = np.full(len(values), np.iinfo(np.int64).max)
    end = np.full(len(values), np.iinfo(np.int64).min)
    np.minimum.at(begin, inverse, work.begin_ns)
    np.maximum.at(end, inverse, work.end_ns)
    after = np.append(borders, np.iinfo(np.int64).max)[values]
    rows.context.add(
        "phases",
        begin_ns=begin,
        end_ns=np.minimum(end, after),
        track_id=np.full(len(values), main),
        process_id=rows.process_id,
        phase_code=int(Phase.BACKWARD),
        name_code=rows.context.code("autograd"),
    )


def _add_spans(rows: FileRows, notes: EventRows, track: Int64) -> None:
    if len(notes):
        compiles = rows.file.matching(notes.name, _COMPILES.search)
        # A note just before says which compilation of a function it is: compile_id=0/2 is the third of the first one.
        known = rows.file.coded(notes.name, lambda name: int(m[1]) if (m := _COMPILE_ID.search(name)) else 0)
        before = np.append(0, known[:-1])
        rows.context.add(
            "spans",
            begin_ns=notes.begin_ns,
            end_ns=notes.end_ns,
            track_id=track,
            kind_code=np.where(compiles, int(SpanKind.COMPILE), int(SpanKind.USER)),
            name_code=rows.codes(notes.name, lambda name: _COMPILES.sub("torch.compile", name)),
            value=np.where(compiles, before, 0),
        )


#: Operators less than this apart belong to one stretch of work.
_SAME_STRETCH_NS = 50_000


def add_operators(rows: FileRows, operators: Mapping[int, ThreadEvents], steps: Steps) -> None:
    """Add annotations where threads ran operators: elsewhere, a thread with a collective in flight may wait for it.

    Operators with little between them form one stretch, which is cut where steps begin and end.
    """
    edges = np.union1d(steps.begin_ns, steps.end_ns)
    borders = np.append(edges, np.iinfo(np.int64).max)
    for number, events in sorted(operators.items()):
        begin, end = _stretches(events)
        after, until = np.searchsorted(edges, begin, "right"), np.searchsorted(edges, end, "left")
        parts = until - after + 1
        row = np.repeat(np.arange(len(begin)), parts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        rows.context.add(
            "spans",
            begin_ns=np.where(nth == 0, begin[row], borders[after[row] + nth - 1]),
            end_ns=np.where(nth == parts[row] - 1, end[row], borders[np.minimum(after[row] + nth, len(borders) - 1)]),
            track_id=np.full(len(row), rows.context.tracks.thread(rows.process_id, number)),
            kind_code=int(SpanKind.USER),
            name_code=rows.context.code(OPERATORS),
        )


def _stretches(events: ThreadEvents) -> tuple[Int64, Int64]:
    """Return begins and ends of the stretches in which a thread ran operators."""
    order = np.argsort(events.begin_ns, kind="stable")
    first, end = stretches(events.begin_ns[order], events.end_ns[order], _SAME_STRETCH_NS)
    return events.begin_ns[order][first], end


def add_functions(rows: FileRows, operators: Mapping[int, ThreadEvents], functions: Mapping[int, ThreadEvents]) -> None:
    """Add annotations of the Python function that most of each time without an operator lies in, the innermost one."""
    for number, events in sorted(functions.items()):
        if number not in operators:
            continue
        begin, end = _stretches(operators[number])
        since = np.append(min(int(events.begin_ns.min()), int(begin[0])), end)
        until = np.append(begin, max(int(events.end_ns.max()), int(end[-1])))
        long = until - since >= _SAME_STRETCH_NS
        since, until = since[long], until[long]
        chosen = _innermost(events, since, until)
        known = chosen >= 0
        place = chosen[known]
        rows.context.add(
            "spans",
            begin_ns=np.maximum(since[known], events.begin_ns[place]),
            end_ns=np.minimum(until[known], events.end_ns[place]),
            track_id=np.full(len(place), rows.context.tracks.thread(rows.process_id, number)),
            kind_code=int(SpanKind.USER),
            name_code=rows.context.codes([events.texts[n].rpartition("/")[2] for n in events.name[place].tolist()]),
        )


def _innermost(events: ThreadEvents, since: Int64, until: Int64) -> Int64:
    """Return for each stretch the innermost function that at least half of it lies in; -1 where there is none."""
    shortest = int((until - since).min()) // 2 if len(since) else 0
    rows = np.flatnonzero(events.end_ns - events.begin_ns >= shortest)
    rows = rows[np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))]
    begins, ends = events.begin_ns[rows].tolist(), events.end_ns[rows].tolist()
    chosen, inside, at = [], list[int](), 0
    for begin, end in zip(since.tolist(), until.tolist(), strict=True):
        middle = (begin + end) // 2
        while at < len(begins) and begins[at] <= middle:
            while inside and ends[inside[-1]] <= begins[at]:
                inside.pop()
            inside.append(at)
            at += 1
        while inside and ends[inside[-1]] <= middle:
            inside.pop()
        half = (end - begin) / 2
        deepest = (n for n in reversed(inside) if min(ends[n], end) - max(begins[n], begin) >= half)
        chosen.append(next(deepest, -1))
    found = np.array(chosen, dtype=np.int64)
    return np.where(found >= 0, np.append(rows, -1)[found], -1)
