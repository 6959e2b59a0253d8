"""How the makers of batches spent their time, and whether more of them would help.

    a batch made by one worker   [== on the CPU ==][ in the run queue ][ storage ][ network ][ asleep ][ blocked ]
                                  cpu_ns            runqueue_ns         I/O rows              waits     the rest

CPU and run-queue time come from the thread's own clocks, the other parts from rows of I/O and waits of the thread.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.facts import RankFacts
from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.analysis.stalls.cpus import HostCpu
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import BatchPhase, IoFlag, IoOp, WaitOp
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Parts of the making of a batch; time that several could have goes to the first.
PARTS = ("cpu", "queue", "storage", "network", "asleep", "gil", "page_faults", "blocked", "unknown")
DATA_KINDS = COLUMNS["data"]
#: A job that uses this share of its CPUs has none left.
_FULL_RATIO = 0.9
#: Page faults explain time without another cause if at least this share of it is in batches with faults.
_FAULTS_RATIO = 0.5
#: Other processes cause a run queue if they use more than this share of the CPUs.
OTHERS_RATIO = 0.2
#: A maker mostly waits if it waits for more than this part of its time.
_WAITS_RATIO = 0.5
#: Makers that are in the run queue for more than this part of their time have no CPU for the hand-over either.
_STARVED_RATIO = 0.5
#: Advice must make a step at least this much shorter.
_HELPS_RATIO = 0.85


@dataclass(frozen=True, slots=True)
class Making:
    """How a rank's batches were made during its counted steps; times are means per batch.

    Attributes
    ----------
    batches : Table
        Rows of ``batches``, phase FETCH.
    workers : int
        Worker processes; 0 where the step thread makes its own batches.
    batch_ns : float
    parts_ns : dict of str to float
        By ``PARTS``; they sum to ``batch_ns``. Empty where the thread's clocks are unknown.
    faults_count : float
        Page faults per batch that waited for storage.
    needs : float
        Batches that a step consumes: several with gradient accumulation.
    pass_count : int
        Batches of the longest pass over the data; 0 if there was only one pass, which may not have ended.
    """

    batches: Table
    workers: int
    batch_ns: float
    parts_ns: dict[str, float]
    faults_count: float
    needs: float
    pass_count: int = 0


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice to hide the making of batches.

    Attributes
    ----------
    code : str
        ``more_workers``, ``use_workers``, ``workers_keep_up``, ``cpus_are_full`` or ``others_use_cpus``.
    workers : int
        Number of workers that would hide it; -1 if none would.
    condition : str
        The part of ``PARTS`` that must not become slower with more workers, or empty; "pass" if passes over the data
        are too short for more workers.
    floor_ns : float
        Shortest step with any number of workers, by the CPU time that it needs or by the first batch of each pass; -1
        if unknown.
    """

    code: str
    workers: int
    condition: str = ""
    floor_ns: float = -1


def making_of(trace: Trace, rank: int, steps: Table) -> Making | None:
    """Measure how a rank's batches were made; None if that was not recorded.

    Batches of loaders for which the counted steps do not wait, such as validation, are left out. So are batches made
    before the counted steps, when a cache was cold or workers had just begun.
    """
    own = steps.take(steps["rank"] == rank).sort_by("begin_ns")
    batches = trace.batches.take(trace.batches["rank"] == rank)
    made = batches.take(batches["phase_code"] == BatchPhase.FETCH)
    if not len(made) or not len(own):
        return None
    waits = batches.take((batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0))
    waits = waits.take(inside(waits["begin_ns"], own))
    served = made.take(np.isin(made["loader_id"], waits["loader_id"]))
    made = served if len(served) else made
    during = made.take((made["end_ns"] > own["begin_ns"].min()) & (made["begin_ns"] < own["end_ns"].max()))
    made = during if len(during) else made
    makers = np.unique(made["process_id"][made["worker_id"] >= 0])
    count, wall = len(made), made["end_ns"] - made["begin_ns"]
    faults = np.maximum(made["major_faults_count"], 0)
    return Making(
        made,
        len(makers),
        float(wall.mean()),
        _parts(trace, made),
        float(faults.sum()) / count,
        max(len(waits) / max(len(own), 1), 1.0),
        _pass_count(batches.take(np.isin(batches["loader_id"], waits["loader_id"]))),
    )


def _pass_count(batches: Table) -> int:
    """Return the number of batches of a pass over the data, 0 if there were not several passes."""
    waits = batches.take((batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0))
    begins = int((waits["batch_index"] == 0).sum())
    return int(waits["batch_index"].max()) + 1 if begins > 1 else 0


def inside(moments: Int64, own: Table) -> npt.NDArray[np.bool_]:
    """Return which moments lie in the steps of one rank, which are sorted by begin."""
    if not len(own):
        return np.zeros(len(moments), dtype=bool)
    at = np.searchsorted(own["begin_ns"], moments, side="right") - 1
    inside_step: npt.NDArray[np.bool_] = (at >= 0) & (moments < own["end_ns"][np.maximum(at, 0)])
    return inside_step


def _parts(trace: Trace, made: Table) -> dict[str, float]:
    """Return the mean time per batch by part; empty if the CPU time of a batch is unknown."""
    if (made["cpu_ns"] < 0).any():
        return {}
    wall = made["end_ns"] - made["begin_ns"]
    left = wall.astype(np.int64)
    sums = dict.fromkeys(PARTS, 0.0)
    # Clocks of threads are read a moment apart from the stamps of the batch, so a part is limited to the rest.
    taken = {"cpu": made["cpu_ns"], "queue": np.maximum(made["runqueue_ns"], 0), **_recorded(trace, made)}
    for part, amount in taken.items():
        of_batch = np.minimum(amount, left)
        left = left - of_batch
        sums[part] = float(of_batch.sum())
    faulty = (made["major_faults_count"] > 0) | (made["block_inputs_count"] > 0)
    by_faults = left[faulty].sum() if faulty.any() and left[faulty].sum() > _FAULTS_RATIO * left.sum() else 0
    sums["page_faults"] = float(by_faults)
    sums["unknown"] = float(left.sum() - by_faults)
    return {part: ns / len(made) for part, ns in sums.items()}


def _recorded(trace: Trace, made: Table) -> dict[str, Int64]:
    """Return the time of each batch by rows of I/O and waits of its thread: storage, network, asleep, blocked."""
    io, waits = trace.notable_io, trace.waits
    flags, op = io["io_flags"], io["op_code"]
    piped = (flags & (IoFlag.SOCKET | IoFlag.PIPE)) != 0
    socket = ((flags & IoFlag.SOCKET) != 0) & (op == IoOp.RECV)
    stored = ((flags & (IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)) != 0) & ~piped
    pipe = piped & ~socket & ((flags & IoFlag.BLOCKED) != 0)
    polls = waits["wait_code"] == WaitOp.POLL
    sources = (
        ("storage", io, stored),
        ("network", io, socket),
        ("network", waits, polls),
        ("asleep", waits, waits["wait_code"] == WaitOp.SLEEP),
        ("gil", waits, waits["wait_code"] == WaitOp.GIL),
        ("blocked", waits, ~polls & ~np.isin(waits["wait_code"], (WaitOp.SLEEP, WaitOp.GIL))),
        ("blocked", io, pipe),
    )
    spent = {name: np.zeros(len(made), dtype=np.int64) for name in ("storage", "network", "asleep", "gil", "blocked")}
    by_track = RowsBy(made["track_id"])
    for track in by_track.values.tolist():
        rows = by_track.rows(track)
        for name, table, chosen in sources:
            mine = chosen & (table["track_id"] == track)
            if mine.any():
                time = TimeSet.of(table["begin_ns"][mine], table["end_ns"][mine])
                spent[name][rows] += time.within(made["begin_ns"][rows], made["end_ns"][rows])
    return spent


def advice_of(
    rank: RankFacts, making: Making, cpu: HostCpu | None, ranks_on_host: int, *, training: bool = True
) -> Advice | None:
    """Return what would hide the making of batches if each worker made them as fast as the present ones.

    A job can use the CPUs that other processes leave. A loader that mostly waits needs few of them, however busy they
    are.
    """
    rest_ns = rank.wall_ns / max(rank.steps_count, 1) - rank.per_step_ns(*DATA_KINDS)
    if rest_ns <= 0 or making.batch_ns <= 0:
        return None
    parts = making.parts_ns
    # Time in the run queue vanishes if there are CPUs for all threads; if not, CPUs are the limit anyway.
    busy_ns = parts.get("cpu", making.batch_ns)
    needed = math.ceil(making.needs * (making.batch_ns - parts.get("queue", 0.0)) / rest_ns)
    waiting_ns = sum(ns for part, ns in parts.items() if part not in ("cpu", "queue"))
    # The CPU time of a step thread that makes its own batches includes them.
    own_ns = making.needs * busy_ns if making.workers == 0 else 0.0
    floor_ns = -1.0
    if cpu is not None and parts:
        # The CPU time of a rank is that of its training steps; in other steps its thread uses a CPU for the rest.
        step_ns = max(cpu.main_ns_per_s.get(rank.rank, 0.0) * rank.step_ns / 1e9 - own_ns, 0.0) if training else rest_ns
        # Other processes do not limit a loader that mostly waits: it needs a CPU only for short times.
        left = cpu.count if waiting_ns > _WAITS_RATIO * making.batch_ns else max(cpu.count - cpu.others_count, 0.1)
        floor_ns = ranks_on_host * (making.needs * busy_ns + step_ns) / left
    if making.workers and making.needs * making.batch_ns <= making.workers * rest_ns:
        return Advice("workers_keep_up", needed)
    if making.workers and needed <= making.workers:  # enough without the time in the run queue
        return Advice(_whose_cpus(cpu), -1, "", floor_ns)
    if floor_ns > _HELPS_RATIO * rank.step_ns and cpu is not None:
        crowded = floor_ns * max(cpu.count - cpu.others_count, 0.1) / cpu.count <= _HELPS_RATIO * rank.step_ns
        return Advice("others_use_cpus" if crowded else "cpus_are_full", -1, "", floor_ns)
    idle = {part: ns for part, ns in parts.items() if part not in ("cpu", "queue")}
    longest = max(idle, key=idle.__getitem__, default="")
    condition = longest if longest and idle[longest] > 0.25 * making.batch_ns else ""
    code = "more_workers" if making.workers else "use_workers"
    limit_ns = -1.0
    if floor_ns > _FULL_RATIO * rest_ns:  # no use in more workers than the CPUs can serve
        limit_ns = floor_ns
        needed = max(math.ceil(making.needs * (making.batch_ns - parts.get("queue", 0.0)) / floor_ns), 1)
    if needed > making.pass_count > 0:  # no number of workers makes the first batch of a pass faster
        each_ns = max(making.needs * making.batch_ns / making.pass_count, rest_ns, floor_ns)
        return Advice(code, making.pass_count, "pass", each_ns)
    return Advice(code, needed, condition, limit_ns)


def handoff_code(making: Making, cpu: HostCpu | None) -> str:
    """Return what would shorten the hand-over of batches: fewer batches, unless both of its ends wait for a CPU."""
    starved = making.parts_ns.get("queue", 0.0) > _STARVED_RATIO * making.batch_ns
    return _whose_cpus(cpu) if starved else "fewer_larger_batches"


def _whose_cpus(cpu: HostCpu | None) -> str:
    others = cpu is not None and cpu.others_count > OTHERS_RATIO * cpu.count
    return "others_use_cpus" if others else "cpus_are_full"
