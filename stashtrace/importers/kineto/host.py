"""Steps, batches, phases and annotations of the host in a Kineto file.

main thread      [ProfilerStep#5 .................................][ProfilerStep#6 ...      -> spans, kind STEP
                  [enumerate(DataLoader)..__next__]  [Optimizer.step#SGD.step]              -> batches, phases
autograd thread                       [evaluate_function: ..] [evaluate_function: ..]       -> one backward
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace.importers.kineto.device import DeviceRows
from stashtrace.importers.kineto.events import ABSENT, EventRows, FileRows, Int64, KinetoFile
from stashtrace.schema.kinds import BatchPhase, Phase, PhaseFlag, Severity, SpanKind, ThreadRole
from stashtrace.schema.trace import WHOLE_RECORDING
from stashtrace.units import duration_text

_STEP = re.compile(r"^ProfilerStep\s*#?\s*(\d+)")
_LOADER = re.compile(r"^enumerate\(DataLoader\)#")
_ONE_PROCESS = re.compile(r"SingleProcess")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ZERO = re.compile(r"^Optimizer\.zero_grad#")
_FORWARD = re.compile(r"^(## )?forward( ##)?$|^(DistributedDataParallel|FullyShardedDataParallel)\.forward$")
_BACKWARD = re.compile(r"^(## )?backward( ##)?$")
#: worker_id of a batch that a worker made of which the file shows nothing.
_UNSEEN_WORKER = -2
_MAIN_PROCESS = -1
#: The host's events and the end of the recording are stamped by different clocks.
_CLOCK_SLACK_NS = 100_000


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the file by number, in order of time; they do not overlap."""

    number: Int64
    begin_ns: Int64
    end_ns: Int64

    def at(self, moments: Int64) -> Int64:
        """Place of the step in which each moment lies, or after which it comes; -1 before the first."""
        return np.searchsorted(self.begin_ns, moments, side="right") - 1


def add_host_side(rows: FileRows, work: DeviceRows) -> Steps:
    """Fill ``spans``, ``batches`` and ``phases``; gives the steps."""
    notes = rows.file.rows["notes"]
    notes = notes.take(notes.begin_ns != ABSENT)
    notes = notes.take(np.argsort(notes.begin_ns, kind="stable"))
    track = rows.threads(notes.tid)
    is_step, is_load, is_update, is_zero, is_forward, is_backward = (
        rows.file.matching(notes.name, pattern) for pattern in (_STEP, _LOADER, _OPTIMIZER, _ZERO, _FORWARD, _BACKWARD)
    )
    until_ns = _recorded_until(rows.file, notes.take(is_step))
    steps, main = _steps(rows, notes, track, is_step, until_ns)
    # What was open when the recording ended lasts, in the file, until the recording was processed.
    notes = replace(notes, end_ns=np.maximum(np.minimum(notes.end_ns, until_ns), notes.begin_ns))
    _add_batches(rows, notes.take(is_load), track[is_load])
    code = np.select(
        [is_update, is_forward, is_backward],
        [int(Phase.OPTIMIZER), int(Phase.FORWARD), int(Phase.BACKWARD)],
        default=0,
    )
    _add_phases(rows, notes.take(code > 0), track[code > 0], code[code > 0])
    if main < 0:
        main = _main_thread(track, is_load | is_update, work)
    if main >= 0:
        rows.context.tracks.assign_role(main, ThreadRole.STEP)
        if not is_backward.any():
            _add_gradients(rows, main, np.sort(notes.begin_ns[is_update | is_forward | is_load | is_step]))
        if not len(steps.number) and not is_update.any() and np.count_nonzero(is_load) < 2:
            steps = _whole_recording(rows, main, until_ns)
    others = ~(is_step | is_load | is_update | is_zero | is_forward | is_backward)
    _add_spans(rows, notes.take(others), track[others])
    return steps


def _recorded_until(file: KinetoFile, steps: EventRows) -> int:
    """End of what was recorded, with the slack of its clock; a far moment if the file does not tell it."""
    until_ns = file.recorded_until_ns
    first = int(steps.begin_ns.min()) if len(steps) else 0
    # A mark that comes before all steps is of another clock.
    return until_ns + _CLOCK_SLACK_NS if until_ns is not None and until_ns > first else int(np.iinfo(np.int64).max)


def _steps(
    rows: FileRows, notes: EventRows, track: Int64, is_step: npt.NDArray[np.bool_], until_ns: int
) -> tuple[Steps, int]:
    """Steps as torch.profiler marked them, each up to the next if that one follows, and their thread.

    A step that was still going on when the recording ended is left out, or cut where no step is whole; a loss row
    says so.
    """
    found = notes.take(is_step)
    number = rows.coded(found.name, lambda name: int(m[1]) if (m := _STEP.match(name)) else -1)
    # A step of a number may be there once for each thread that took part; the longest is the loop's.
    order = np.lexsort((found.end_ns, number))
    last = np.append(number[order][1:] != number[order][:-1], True) if len(order) else np.zeros(0, dtype=bool)
    order = order[last]
    order = order[np.argsort(found.begin_ns[order], kind="stable")]
    number, begin, end = number[order], found.begin_ns[order], found.end_ns[order].copy()
    if not len(number):
        return Steps(number, begin, end), -1
    follows = number[1:] == number[:-1] + 1
    end[:-1] = np.where(follows, begin[1:], np.minimum(end[:-1], begin[1:]))
    own, names = track[is_step][order], found.name[order]
    whole = found.end_ns[order] <= until_ns
    if not whole.all():
        _tell_cut_steps(rows, number, begin, whole, until_ns)
        whole[0] |= not whole.any()
        end = np.maximum(np.minimum(end, until_ns - _CLOCK_SLACK_NS), begin)
        number, begin, end, own, names = number[whole], begin[whole], end[whole], own[whole], names[whole]
    rows.context.add(
        "spans",
        begin_ns=begin,
        end_ns=end,
        track_id=own,
        kind_code=int(SpanKind.STEP),
        name_code=rows.codes(names),
        value=number,
    )
    return Steps(number, begin, end), int(own[0])


def _tell_cut_steps(rows: FileRows, number: Int64, begin: Int64, whole: npt.NDArray[np.bool_], until_ns: int) -> None:
    first, *more = np.flatnonzero(~whole).tolist()
    into = max(until_ns - _CLOCK_SLACK_NS - int(begin[first]), 0)
    if not whole.any():
        fate = ", and no step is whole: what was recorded of it counts as a step"
    elif more:
        fate = f": that step and {len(more)} behind it are not counted"
    else:
        fate = ": that step is not counted"
    rank = rows.context.processes[rows.process_id].rank
    rows.context.doubt(
        "step_cut_off",
        f"the recording of rank {rank} ends {duration_text(into)} into step {number[first]}{fate}",
        rows.process_id,
    )


def _whole_recording(rows: FileRows, main: int, until_ns: int) -> Steps:
    """One step for all of a recording in which nothing says where steps begin."""
    window = rows.file.rows["window"]
    work = [rows.file.rows[t] for t in ("kernels", "talks", "copies", "memsets", "calls", "notes")]
    work = [w for w in work if len(w)]
    if len(window):
        begin, end = int(window.begin_ns.min()), int(window.end_ns.max())
    elif work:
        begin, end = min(int(w.begin_ns.min()) for w in work), max(int(w.end_ns.max()) for w in work)
    else:
        return Steps(*(np.empty(0, dtype=np.int64) for _ in range(3)))
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


def _main_thread(track: Int64, telling: npt.NDArray[np.bool_], work: DeviceRows) -> int:
    """Thread of the loop: with the most updates and batches, else with the most launches."""
    for candidates in (track[telling], work.launch_threads, track):
        if len(candidates):
            values, counts = np.unique(candidates, return_counts=True)
            return int(values[counts.argmax()])
    return -1


def _add_batches(rows: FileRows, loads: EventRows, track: Int64) -> None:
    """Waits for batches. Who made them, and how, is not in the file."""
    if not len(loads):
        return
    iterators, index = np.unique(loads.name, return_inverse=True)
    number = np.empty(len(loads), dtype=np.int64)
    for at in range(len(iterators)):
        number[index == at] = np.arange(np.count_nonzero(index == at))
    alone = rows.file.matching(loads.name, _ONE_PROCESS)
    rows.context.add(
        "batches",
        begin_ns=loads.begin_ns,
        end_ns=loads.end_ns,
        track_id=track,
        process_id=np.full(len(loads), rows.process_id),
        loader_id=(index + 1).astype(np.uint64),
        batch_index=number,
        worker_id=np.where(alone, _MAIN_PROCESS, _UNSEEN_WORKER),
        phase_code=int(BatchPhase.WAIT),
    )


def _add_phases(rows: FileRows, notes: EventRows, track: Int64, code: Int64) -> None:
    if not len(notes):
        return
    order = np.lexsort((-notes.end_ns, notes.begin_ns, track))
    begin, end, own = notes.begin_ns[order], notes.end_ns[order], track[order]
    nested = np.zeros(len(order), dtype=bool)
    for thread in np.unique(own).tolist():
        at = np.flatnonzero(own == thread)
        before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[at])[:-1])
        nested[at] = begin[at] < before
    rows.context.add(
        "phases",
        begin_ns=begin,
        end_ns=end,
        track_id=own,
        process_id=np.full(len(order), rows.process_id),
        phase_code=code[order],
        phase_flags=np.where(nested, int(PhaseFlag.NESTED), 0),
        name_code=rows.codes(notes.name[order], _module),
    )


def _module(name: str) -> str:
    """``SGD`` of ``Optimizer.step#SGD.step``, the class of ``DistributedDataParallel.forward``."""
    return name.partition("#")[2].removesuffix(".step") if name.startswith("Optimizer.") else name.partition(".")[0]


def _add_gradients(rows: FileRows, main: int, borders: Int64) -> None:
    """Backward passes, from the first to the last operator of the autograd engine between two marks of the loop."""
    work = rows.file.rows["gradients"]
    work = work.take(work.begin_ns != ABSENT)
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
        rows.context.add(
            "spans",
            begin_ns=notes.begin_ns,
            end_ns=notes.end_ns,
            track_id=track,
            kind_code=int(SpanKind.USER),
            name_code=rows.codes(notes.name),
        )
