"""The made-up traces: pipelines, nested groups, ranks with a GPU, blocking copies, cut recordings.

To add one, add an entry to ``TRACES``: its program per rank and what is planted.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from causes import words
from causes.plan import Cause, Plan, Truth
from causes.simulate import (
    SYNC,
    Simulated,
    Work,
    collective,
    compute,
    host,
    receive,
    send,
    simulate,
    write_traces,
)

STEP = Work("step")
LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Programs = list[list[Work]]


@dataclass(frozen=True)
class Foreign:
    """A made-up trace.

    Attributes
    ----------
    planted_ms : tuple of float
        How long each cause takes a step, as the program says; of two stages that differ, the difference.
    begin_ms : float
        The recording begins so late.
    cut : mapping of int to float
        Rank -> part of its file that is there.
    missing : tuple of int
        Ranks whose file is not there.
    category : str
        That of the work of the device, if not "kernel".
    """

    name: str
    title: str
    programs: Callable[[], Programs]
    plan: Plan = field(default_factory=Plan)
    planted_ms: tuple[float, ...] = ()
    begin_ms: float = 0.0
    cut: Mapping[int, float] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    category: str = "kernel"


def write(member: Foreign, folder: Path) -> Truth:
    """Write the files of a made-up trace and return what is true of it."""
    simulated = simulate(member.programs())
    for events in simulated.events.values():
        for event in events:
            if event["cat"] == "kernel":
                event["cat"] = member.category
    write_traces(simulated, folder, member.begin_ms, dict(member.cut))
    for rank in member.missing:
        (folder / f"trace_rank{rank}.json").unlink()
    amounts = [_amounts(simulated, cause, member.planted_ms[n]) for n, cause in enumerate(member.plan.causes)]
    return Truth(len(simulated.events), simulated.step_ms, tuple(amounts))


def _amounts(simulated: Simulated, cause: Cause, planted_ms: float) -> dict[str, float]:
    """Return each figure that a sentence about a cause may say."""
    amounts = {"planted": planted_ms}
    if cause.kind in ("compute", "skew"):
        amounts |= {f"computing of rank {rank}": ms for rank, ms in simulated.computed_ms.items()}
    losers = {rank: ms for rank, ms in simulated.waits_ms.items() if rank not in cause.ranks}
    amounts |= {f"wait of rank {rank}": ms for rank, ms in losers.items()}
    amounts["wait of all"] = sum(losers.values())
    # Each of the others waits for what is planted on this rank, whatever else is.
    amounts["wait of all behind it"] = planted_ms * len(losers)
    return {label: ms for label, ms in amounts.items() if ms > 0}


def pipeline(
    forward_ms: Sequence[float], before: Mapping[int, Work] | None = None, microbatches: int = 4, steps: int = 12
) -> Programs:
    """Make the programs of a pipeline, one stage a rank; all forwards come first, then all backwards."""
    last = len(forward_ms) - 1
    programs = []
    for rank, milliseconds in enumerate(forward_ms):
        step: list[Work] = [STEP, *([before[rank]] if before and rank in before else [])]
        for _ in range(microbatches):
            step += [receive(rank, rank - 1)] if rank else []
            step += [compute(milliseconds)]
            step += [send(rank, rank + 1)] if rank < last else []
        for _ in range(microbatches):
            step += [receive(rank, rank + 1)] if rank < last else []
            step += [compute(2 * milliseconds, "backward")]
            step += [send(rank, rank - 1)] if rank else []
        programs.append([*step, compute(1.0, "update"), SYNC] * steps)
    return programs


def interleaved(forward_ms: Sequence[float], chunks: int = 2, microbatches: int = 8, steps: int = 12) -> Programs:
    """Make the programs of a pipeline with several stages on each rank, by interleaved 1F1B; times are of a stage."""
    ranks, whole = len(forward_ms), chunks * microbatches
    programs = []
    for rank, milliseconds in enumerate(forward_ms):
        # A rank goes from one of its stages to the next after as many micro-batches as there are ranks.
        forwards = [
            _pass(rank, ranks, number // ranks % chunks * ranks + rank, ranks * chunks - 1, milliseconds)
            for number in range(whole)
        ]
        backwards = [
            _pass(
                rank, ranks, (chunks - 1 - number // ranks % chunks) * ranks + rank, ranks * chunks - 1, -milliseconds
            )
            for number in range(whole)
        ]
        ahead = min(whole, (chunks - 1) * ranks + 2 * (ranks - 1 - rank))
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            order += [forward, backward]
        order += backwards[whole - ahead :]
        programs.append([STEP, *[work for part in order for work in part], compute(1.0, "update"), SYNC] * steps)
    return programs


def _pass(rank: int, ranks: int, stage: int, last: int, milliseconds: float) -> list[Work]:
    """Return what a rank does for a micro-batch in a stage, in the backward if the time is negative."""
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    if milliseconds > 0:
        work = [*([receive(rank, before)] if stage else []), compute(milliseconds)]
        return [*work, *([send(rank, after)] if stage < last else [])]
    work = [*([receive(rank, after)] if stage < last else []), compute(-2 * milliseconds, "backward")]
    return [*work, *([send(rank, before)] if stage else [])]


def replicas(
    count: int,
    before: Callable[[int, int], Sequence[Work]] = lambda rank, step: (),
    middle: Callable[[int, int], Sequence[Work]] = lambda rank, step: (),
    transfer_ms: float = 4.0,
    steps: int = 12,
) -> Programs:
    """Make the programs of a data-parallel job; ``before`` comes ahead of the forward, ``middle`` of the backward."""
    everybody = range(count)
    return [
        [
            work
            for step in range(steps)
            for work in (
                STEP,
                *before(rank, step),
                compute(15.0),
                *middle(rank, step),
                compute(30.0, "backward"),
                collective("allreduce", everybody, transfer_ms),
                compute(2.0, "update"),
                SYNC,
            )
        ]
        for rank in everybody
    ]


def only(rank: int, *work: Work) -> Callable[[int, int], Sequence[Work]]:
    """Let one rank do this in each step."""
    return lambda number, step: work if number == rank else ()


def nested(longer: Mapping[int, float], steps: int = 12) -> Programs:
    """Make the programs of four ranks in two tensor-parallel pairs, which sum their gradients across the pairs."""
    programs = []
    for rank in range(4):
        pair, across = (0, 1) if rank < 2 else (2, 3), (rank % 2, rank % 2 + 2)
        step = [STEP, compute(20.0 + longer.get(rank, 0.0)), collective("allreduce", pair, 1.0)]
        step += [compute(20.0, "backward"), collective("allreduce", pair, 1.0), collective("allreduce", across, 2.0)]
        programs.append([*step, compute(2.0, "update"), SYNC] * steps)
    return programs


def sharded(count: int, longer: Mapping[int, float], layers: int = 4, steps: int = 12) -> Programs:
    """Make the programs of a fully sharded job: a gather before each layer, a scatter after its backward."""
    everybody = range(count)
    programs = []
    for rank in everybody:
        more = longer.get(rank, 0.0) / layers
        step: list[Work] = [STEP]
        for _ in range(layers):
            step += [collective("_allgather_base", everybody, 0.5), compute(4.0)]
        for _ in range(layers):
            step += [compute(8.0 + more, "backward"), collective("_reduce_scatter_base", everybody, 0.5)]
        programs.append([*step, compute(2.0, "update"), SYNC] * steps)
    return programs


def experts(count: int, longer: Mapping[int, float], steps: int = 12) -> Programs:
    """Make the programs of a mixture of experts: rows go to their experts and come back."""
    everybody = range(count)
    programs = []
    for rank in everybody:
        step = [STEP, compute(10.0), collective("all_to_all", everybody, 1.0)]
        step += [compute(15.0 + longer.get(rank, 0.0), "experts"), collective("all_to_all", everybody, 1.0)]
        step += [compute(20.0, "backward"), collective("allreduce", everybody, 2.0), compute(2.0, "update"), SYNC]
        programs.append(step * steps)
    return programs


def two_groups(steps: int = 12) -> Programs:
    """Make the programs of a job in which rank 1 computes longer ahead of one all-reduce, rank 2 loads ahead of it."""
    everybody = range(4)
    programs = []
    for rank in everybody:
        step = [STEP, *([host(35.0, LOAD)] if rank == 2 else []), compute(15.0)]
        step += [collective("allreduce", everybody, 1.0), SYNC]
        step += [compute(70.0 if rank == 1 else 30.0, "backward"), collective("allreduce", everybody, 1.0)]
        programs.append([*step, compute(2.0, "update"), SYNC] * steps)
    return programs


def stuttering(rank: int, count: int, steps: int = 12) -> Programs:
    """Make the programs of a job of which one rank reads a value back after each of ten small pieces of work."""
    everybody = range(count)
    programs = []
    for number in everybody:
        pieces = [[compute(3.0), *([SYNC, host(4.0)] if number == rank else [])] for _ in range(10)]
        step = [STEP, *[work for piece in pieces for work in piece]]
        programs.append([*step, collective("allreduce", everybody, 1.0), compute(2.0, "update"), SYNC] * steps)
    return programs


BALANCED = Plan(false=words.NO_LOADER)
PIPELINE = Plan(false=(*words.NO_LOADER, *words.STEADY, *words.NO_WAITING_SENDS))


def _stage(rank: int) -> Plan:
    return Plan((Cause((rank,), "compute", named=words.STAGE),), false=PIPELINE.false)


def _one(rank: int, kind: str, shape: str = "", false: tuple[str, ...] = words.NO_LOADER) -> Plan:
    return Plan((Cause((rank,), kind),), shape, false)


TRACES = (
    Foreign("pipe2_even", "2 equal stages", lambda: pipeline([6] * 2), PIPELINE),
    Foreign("pipe4_even", "4 equal stages", lambda: pipeline([6] * 4), PIPELINE),
    Foreign("pipe8_even", "8 equal stages, 8 micro-batches", lambda: pipeline([6] * 8, microbatches=8), PIPELINE),
    Foreign("interleaved4_even", "2 equal stages on each of 4 ranks", lambda: interleaved([6] * 4), PIPELINE),
    Foreign("nested_even", "tensor-parallel pairs", lambda: nested({}), BALANCED),
    Foreign("experts_even", "a mixture of experts", lambda: experts(4, {}), BALANCED),
    Foreign("gpu_even", "4 replicas", lambda: replicas(4), BALANCED),
    Foreign("sharded_even", "8 fully sharded ranks", lambda: sharded(8, {}), BALANCED),
    Foreign("cut_head", "4 replicas, the recording begins within a step", lambda: replicas(4), BALANCED, begin_ms=80.0),
    Foreign("cut_file", "4 replicas, a file is cut", lambda: replicas(4), BALANCED, cut={2: 0.6}),
    Foreign(
        "missing_rank",
        "rank 2 of 4 computes longer, and its file is missing",
        lambda: replicas(4, middle=only(2, compute(40.0))),
        BALANCED,
        missing=(2,),
    ),
    Foreign(
        "other_device",
        "a device whose work is of a category that nobody knows",
        lambda: replicas(1),
        Plan(false=(*words.NOT_COMPUTE, *words.NO_LOADER)),
        category="mtia_workload",
    ),
    Foreign("pipe2_stage1", "the second of 2 stages computes longer", lambda: pipeline([6, 10]), _stage(1), (48.0,)),
    Foreign(
        "pipe4_stage2", "the third of 4 stages computes longer", lambda: pipeline([6, 6, 10, 6]), _stage(2), (48.0,)
    ),
    Foreign(
        "pipe4_last",
        "the last of 4 stages computes longer (its loss)",
        lambda: pipeline([6, 6, 6, 9]),
        _stage(3),
        (36.0,),
    ),
    Foreign(
        "pipe8_stage3",
        "the fourth of 8 stages computes longer",
        lambda: pipeline([6, 6, 6, 9, 6, 6, 6, 6], microbatches=8),
        _stage(3),
        (72.0,),
    ),
    Foreign(
        "interleaved4_rank2",
        "the stages of the third of 4 ranks, two on each, compute longer",
        lambda: interleaved([6, 6, 9, 6]),
        _stage(2),
        (144.0,),
    ),
    Foreign(
        "pipe4_loads",
        "the first of 4 stages waits for its batch",
        lambda: pipeline([6] * 4, {0: host(60.0, LOAD)}),
        _one(0, "batches", false=words.NO_WAITING_SENDS),
        (60.0,),
    ),
    Foreign(
        "pipe4_python",
        "the first of 4 stages runs Python before it launches",
        lambda: pipeline([6] * 4, {0: host(60.0)}),
        _one(0, "launch", false=PIPELINE.false),
        (60.0,),
    ),
    Foreign(
        "pipe4_copy",
        "the third of 4 stages copies from pageable memory",
        lambda: pipeline([6] * 4, {2: Work("copy", "", 70.0)}),
        _one(2, "copy", false=PIPELINE.false),
        (70.0,),
    ),
    Foreign(
        "nested_compute",
        "rank 2 computes longer; its pair waits for it, and the other pair for both",
        lambda: nested({2: 30.0}),
        _one(2, "compute"),
        (30.0,),
    ),
    Foreign(
        "sharded_compute",
        "rank 5 of 8 sharded ranks computes longer",
        lambda: sharded(8, {5: 32.0}),
        _one(5, "compute"),
        (32.0,),
    ),
    Foreign("experts_skew", "rank 3 has a hot expert", lambda: experts(4, {3: 30.0}), _one(3, "skew"), (30.0,)),
    Foreign(
        "gpu_compute",
        "rank 1 computes longer",
        lambda: replicas(4, middle=only(1, compute(40.0))),
        _one(1, "compute"),
        (40.0,),
    ),
    Foreign(
        "gpu_copy",
        "rank 1 copies from pageable memory",
        lambda: replicas(4, only(1, Work("copy", "", 50.0))),
        _one(1, "copy"),
        (50.0,),
    ),
    Foreign(
        "gpu_python",
        "rank 3 runs Python before it launches",
        lambda: replicas(4, only(3, host(40.0))),
        _one(3, "launch"),
        (40.0,),
    ),
    Foreign(
        "gpu_loader",
        "rank 2 waits for its batches",
        lambda: replicas(4, only(2, host(45.0, LOAD))),
        _one(2, "batches", false=()),
        (45.0,),
    ),
    Foreign(
        "gpu_save",
        "rank 0 saves a checkpoint in every fourth step",
        lambda: replicas(
            2,
            lambda rank, step: [host(160.0, "save_checkpoint")] if rank == 0 and step % 4 == 3 else (),
            steps=24,
        ),
        _one(0, "save", words.EVERY),
        (160.0,),
    ),
    Foreign(
        "gpu_link",
        "all-reduces move their bytes slowly",
        lambda: replicas(4, transfer_ms=50.0),
        Plan((Cause((0, 1, 2, 3), "link"),), false=words.NO_LOADER),
        (50.0,),
    ),
    Foreign(
        "gpu_change",
        "rank 1 computes longer from step 12 on",
        lambda: replicas(4, middle=lambda rank, step: [compute(40.0)] if rank == 1 and step >= 12 else (), steps=24),
        _one(1, "compute", words.FROM),
        (40.0,),
    ),
    Foreign(
        "gpu_drift",
        "rank 1 computes longer in each step than in the one before",
        lambda: replicas(4, middle=lambda rank, step: [compute(3.0 * step)] if rank == 1 and step else (), steps=24),
        _one(1, "compute", words.GROWS),
        (69.0,),
    ),
    Foreign(
        "gpu_two",
        "rank 1 computes longer, and rank 2 waits for its batches",
        two_groups,
        Plan((Cause((1,), "compute"), Cause((2,), "batches"))),
        (40.0, 35.0),
    ),
    Foreign(
        "gpu_reads_back",
        "rank 0 reads a value back after each small piece of work",
        lambda: stuttering(0, 4),
        _one(0, "sync"),
        (40.0,),
    ),
    Foreign(
        "cut_compute",
        "rank 1 computes longer, and a file is cut",
        lambda: replicas(4, middle=only(1, compute(40.0))),
        _one(1, "compute"),
        (40.0,),
        cut={3: 0.6},
    ),
)
