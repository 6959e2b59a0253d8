"""Jobs of a few ranks on played devices, with a known amount of one fault in each step.

Used by the tests of this folder that run on doubles. A program is what each rank's actor runs (device_actor.cpp of
tests/fakes); its durations and the rates of ``SCRIPT`` say exactly what each step consists of. Recorder, decoders and
attribution are the real ones; only CUDA and NCCL below them are played.

    compute stream   [ 10 ms ]........[ 10 ms ]      kinds of the step: 20 ms compute, 25 ms of what is injected
    side stream               [ 25 ms ]
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device import run_ranks
from traced import TracedRun

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps as steps_of
from stashtrace.schema.trace import Trace

STEPS = 8
#: Steps at each end that are compared with nobody: first uses, communicators, the end of the job.
LEFT_OUT = 2
#: Each device counts its time: from another origin, at another rate, %globaltimer apart from events.
SCRIPT = """
rate.h2d.pinned 10GB
nccl.latency 10us
nccl.bandwidth 10GB
device 0 event.offset 3s
device 0 event.drift 20ppm
device 1 event.offset 700s
device 1 event.drift -35ppm
device 1 globaltimer.drift 15ppm
"""
Kinds = Mapping[str, float]


@dataclass(frozen=True)
class Scenario:
    """One fault.

    Attributes
    ----------
    program : str
        Statements of one step; ``step`` is added.
    expected : dict of int to dict of str to float
        Rank -> kind -> ms of each step. A kind that is not named has none.
    injected_ms : float
        The fault: no kind may be off by more than a tenth of it.
    bounds : dict of int to dict of str to float
        Rank -> kind -> ms that lie between ``low_ns`` and ``high_ns``, of kinds whose point cannot be known.
    cause_rank : int
        Whom the waiting ranks must name, -1 if there is no straggler.
    with_kernels : dict of int to dict of str to float, optional
        What takes the place of ``expected`` where every kernel was recorded, which knows what is a bound otherwise.
    prelude : str
        Statements before the first step.
    at_most : dict of int to dict of str to float
        Rank -> kind -> ms that ``high_ns`` must not exceed: what was observed is not a bound.
    hosts : tuple of str
        Host of each rank; the doubles run on one, so these names replace its name once the run is loaded.
    """

    name: str
    program: str
    expected: Mapping[int, Kinds]
    injected_ms: float
    bounds: Mapping[int, Kinds] = field(default_factory=dict)
    cause_rank: int = -1
    with_kernels: Mapping[int, Kinds] | None = None
    script: str = ""
    prelude: str = ""
    at_most: Mapping[int, Kinds] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()


def both(**kinds: float) -> dict[int, Kinds]:
    """The same on both ranks."""
    return {0: kinds, 1: kinds}


#: As a data-parallel job does it: on a separate stream, which waits for compute, and for which the update waits.
_ALL_REDUCE = "wait stream=2 for=0; allreduce {} stream=2; wait stream=0 for=2;"
#: Many kernels, as in a real step: deep mode takes a step for cut off that has a tenth less of them than the others.
_TRAIN = "forward {{ {} }} backward {{ repeat 20 {{ kernel 500us }} {} }} optimizer {{ {} kernel 2ms }}"


def _step(forward: str = "kernel 10ms", backward: str = "", update: str = "") -> str:
    return _TRAIN.format(forward, backward, update)


#: A batch wait there says that the stream carries compute.
_SECOND_STREAM = "batch_wait 1ms stream=3;"
_COPY = "wait stream=1 for=0; copy h2d 250MB pinned stream=1; wait stream=0 for=1"

SCENARIOS = (
    Scenario(
        "h2d",
        _step("wait stream=1 for=0; copy h2d 250MB pinned stream=1; wait stream=0 for=1; kernel 10ms"),
        both(compute=22, h2d=25),
        25,
    ),
    Scenario(
        "straggler_device",
        _step(backward="; rank 1 kernel 25ms", update=_ALL_REDUCE.format("1MB")),
        {0: {"compute": 22, "straggler": 25}, 1: {"compute": 47}},
        25,
        cause_rank=1,
    ),
    Scenario(
        "straggler_host",
        _step(backward="; rank 1 { sync stream=0; sleep 25ms }", update=_ALL_REDUCE.format("1MB")),
        {0: {"compute": 22, "straggler": 25}, 1: {"compute": 47}},
        25,
        bounds={1: {"sync": 25}},
        cause_rank=1,
        with_kernels={0: {"compute": 22, "straggler": 25}, 1: {"compute": 22, "sync": 25}},
    ),
    Scenario(
        "interconnect",
        _step(update=_ALL_REDUCE.format("250MB")),
        both(compute=22, interconnect=25),
        25,
    ),
    Scenario(
        "network",
        _step(update=_ALL_REDUCE.format("250MB")),
        both(compute=22, network=25),
        25,
        script="nccl.nodes 2",
    ),
    Scenario(
        "launch",
        _step("kernel 5ms; sleep 30ms; kernel 5ms") + "sync stream=0",
        both(compute=47),
        25,
        bounds=both(launch=25),
        with_kernels=both(compute=22, launch=25),
    ),
    Scenario(
        "sync",
        _step("kernel 10ms; sync stream=0; sleep 25ms; kernel 10ms"),
        both(compute=57),
        25,
        bounds=both(sync=25),
        with_kernels=both(compute=32, sync=25),
    ),
    Scenario(
        "prep",
        "batch_wait 45ms;" + _step(),
        both(compute=22, prep=23),
        23,
        bounds=both(fetch=23, handoff=23),
    ),
    Scenario(
        "two_compute_streams",  # a second one works first and waits for the same copy
        _step(
            "kernel 10ms stream=3; wait stream=1 for=0; wait stream=1 for=3; copy h2d 250MB pinned stream=1;"
            "wait stream=0 for=1; wait stream=3 for=1; kernel 5ms stream=3; kernel 10ms"
        ),
        both(compute=22, h2d=25),
        25,
        prelude=_SECOND_STREAM,
    ),
    Scenario(
        "one_of_two_streams",  # the second one is seen to work, by the event that the update waits for
        _step(f"kernel 40ms stream=3; kernel 10ms; {_COPY}", update="wait stream=0 for=3;"),
        both(compute=47),
        25,
        prelude=_SECOND_STREAM,
        at_most=both(h2d=0),
    ),
    Scenario(
        "one_of_two_streams_unseen",  # nobody recorded an event behind its kernel
        "wait stream=3 for=0;" + _step(f"kernel 40ms stream=3; kernel 10ms; {_COPY}") + "sync device",
        both(compute=47),
        25,
        prelude=_SECOND_STREAM,
        bounds=both(h2d=25),
        with_kernels=both(compute=47),
    ),
    Scenario(
        "everything",
        # Nothing else keeps the hosts together: each late awakening would stay in all later steps.
        "meet; batch_wait 115ms;"
        + _step(
            "wait stream=1 for=0; copy h2d 200MB pinned stream=1; wait stream=0 for=1; kernel 10ms",
            "; rank 1 kernel 30ms",
            _ALL_REDUCE.format("200MB"),
        ),
        {
            0: {"prep": 23, "h2d": 20, "compute": 22, "straggler": 30, "interconnect": 20},
            1: {"prep": 23, "h2d": 20, "compute": 52, "interconnect": 20},
        },
        30,
        cause_rank=1,
    ),
)


@dataclass(frozen=True)
class Measured:
    """Medians over the steps of a rank, in ms."""

    rank: int
    wall_ms: float
    points_ms: dict[str, float]
    low_ms: dict[str, float]
    high_ms: dict[str, float]
    methods: set[str]
    cause_ranks: set[int]


def run(scenario: Scenario, folder: Path, *, steps: int = STEPS, **options: object) -> TracedRun:
    program = f"{scenario.prelude} meet; step; repeat {steps} {{ {scenario.program}; step }}\n"
    ranks = len(scenario.expected)
    done = run_ranks(ranks, program, folder, SCRIPT + scenario.script, **options)  # type: ignore[arg-type]
    if scenario.hosts:
        done.trace = on_hosts(done.trace, scenario.hosts)
    return done


def on_hosts(trace: Trace, hosts: Sequence[str]) -> Trace:
    """A trace as if rank i had run on ``hosts[i]``; the clock stays that of the one machine."""
    processes = trace.processes
    host = processes["host_code"].copy()
    for rank, name in enumerate(hosts):
        host[processes["rank"] == rank] = trace.strings.code(name)
    return trace.replace(processes=processes.replace(host_code=host))


def measure(run: TracedRun) -> list[Measured]:
    """What stashtrace says of each rank."""
    steps = list(steps_of(run.trace).rows())
    rows = list(stalls(run.trace, warmup=True).rows())
    found = []
    for rank in sorted({step["rank"] for step in steps}):
        own = [step for step in steps if step["rank"] == rank][LEFT_OUT:-LEFT_OUT]
        numbers = [step["step"] for step in own]
        table = {(row["step"], row["kind"]): row for row in rows if row["rank"] == rank and row["step"] in numbers}
        waits = [row for row in table.values() if row["kind"] == "straggler" and row["stall_ns"] > 1e6]
        found.append(
            Measured(
                rank,
                statistics.median(step["end_ns"] - step["begin_ns"] for step in own) / 1e6,
                *(_medians(table, numbers, column) for column in ("stall_ns", "low_ns", "high_ns")),
                {row["method"] for row in table.values()},
                {row["cause_rank"] for row in waits},
            )
        )
    return found


def _medians(table: Mapping[tuple[int, str], Any], numbers: list[int], column: str) -> dict[str, float]:
    """Of one column over the steps, by kind, in ms; a kind without a row had nothing in that step."""
    kinds = sorted({kind for _, kind in table})
    nothing = {column: 0}
    return {k: statistics.median(table.get((n, k), nothing)[column] for n in numbers) / 1e6 for k in kinds}
