"""The jobs, and which of them is which other one with something changed."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

from whatif.job import Config


@dataclass(frozen=True)
class Setup:
    """A job and the network between its ranks.

    Attributes
    ----------
    config : Config or None
        Of ``job.py``; None for the example.
    arguments : str
        Of ``examples/train_ddp.py``.
    ranks : int
    megabits : int
        Rate of each rank's host; 0: all ranks are on this one.
    delay_ms : float
        One way, between two hosts.
    cold_ratio : float
        Part of what its batches read that is not in memory.
    """

    config: Config | None = None
    arguments: str = ""
    ranks: int = 2
    megabits: int = 0
    delay_ms: float = 0.0
    cold_ratio: float = 0.0


def _job(megabits: int = 0, delay_ms: float = 0.0, cold_ratio: float = 0.0, **options: object) -> Setup:
    config = Config(**options)  # type: ignore[arg-type]
    return Setup(config, "", config.ranks, megabits, delay_ms, cold_ratio)


def _example(arguments: str, megabits: int = 0) -> Setup:
    return Setup(None, arguments, 2, megabits)


_SMALL = {"gradient_kib": (64,)}
#: Four ranks leave the CPUs of this machine idle: more of them are as if each had a separate host.
_SLEEPING = {"prep_ms": 0.5, "compute_ms": 1.0, "device_ms": 40.0, "steps": 45}
_DELAYED = {"loop": "manual", "gradient_kib": (16, 64, 256)}
#: Two workers of a rank leave a CPU to it; those of two ranks do not.
_ALONE = {**_SMALL, "ranks": 1, "prep_ms": 20.0, "compute_ms": 3.0, "device_ms": 4.0}
_WAITING = {**_SMALL, "prep_ms": 2.0, "prep_wait_ms": 20.0, "compute_ms": 2.0, "device_ms": 4.0}
_CROWDED = {**_SMALL, "prep_ms": 16.0, "compute_ms": 4.0, "device_ms": 2.0}
_COMPUTING = {**_SMALL, "prep_ms": 1.0, "device_ms": 3.0}
_READING = {**_SMALL, "ranks": 1, "prep_ms": 6.0, "compute_ms": 1.0, "device_ms": 0.5, "reads": 60}
#: Jobs that are held apart: no constant of the replay was chosen by them.
_BURSTS = {**_SMALL, "ranks": 1, "prep_ms": 1.0, "burst_ms": 120.0, "burst_every": 8, "device_ms": 14.0, "steps": 80}
_PASSES = {**_WAITING, "ranks": 1, "prep_wait_ms": 30.0, "device_ms": 20.0, "passes": 4, "steps": 80}
_BUSY = {**_SMALL, "prep_ms": 12.0, "compute_ms": 7.0, "device_ms": 0.0, "steps": 80}
#: Two causes at once: batches that take 30 ms, and a rank that is 60 ms late in every other step.
_TWO = {**_WAITING, "prep_wait_ms": 30.0, "device_ms": 8.0, "steps": 80}
_LATE_AND = {"late_ms": 60.0, "late_rank": 1, "late_every": 2}
#: Worker 1 of two takes 100 ms for its batches, the other one 10 ms.
_SLOW = {
    **_WAITING,
    "ranks": 1,
    "workers": 2,
    "prep_wait_ms": 8.0,
    "slow_worker_ms": 90.0,
    "device_ms": 10.0,
    "steps": 80,
}
#: Two groups whose transfers take 42 ms each at 100 Mbit/s if they are alone.
_GROUPS = {"loop": "groups", "gradient_kib": (512, 512), "prep_ms": 1.0, "steps": 40}

SETUPS = {
    "ddp-100": _job(100),
    "ddp-200": _job(200),
    "ddp-100-fp16": _job(100, compress=True),
    "ddp-200-fp16": _job(200, compress=True),
    "ring-2": _job(100, **_SLEEPING, ranks=2),
    "ring-3": _job(100, **_SLEEPING, ranks=3),
    "ring-4": _job(100, **_SLEEPING, ranks=4),
    "manual-100": _job(100, loop="manual"),
    "manual-200": _job(200, loop="manual"),
    "delay-2": _job(delay_ms=2.0, **_DELAYED),
    "delay-4": _job(delay_ms=4.0, **_DELAYED),
    "groups-apart": _job(100, **_GROUPS, compute_ms=8.0, between_ms=48.0),
    "groups-together": _job(100, **_GROUPS, compute_ms=2.0, between_ms=12.0),
    "groups-100": _job(100, **_GROUPS, compute_ms=2.0, between_wait_ms=(48.0,)),
    "groups-50": _job(50, **_GROUPS, compute_ms=2.0, between_wait_ms=(48.0,)),
    "groups-mixed-100": _job(100, **_GROUPS, compute_ms=2.0, between_wait_ms=(6.0, 48.0)),
    "groups-mixed-50": _job(50, **_GROUPS, compute_ms=2.0, between_wait_ms=(6.0, 48.0)),
    "groups-late": _job(
        100, **_GROUPS, compute_ms=2.0, between_wait_ms=(4.0,), late_ms=44.0, late_rank=1, late_every=2
    ),
    "groups-even": _job(100, **_GROUPS, compute_ms=2.0, between_wait_ms=(4.0,)),
    "prep-20": _job(**_ALONE),
    "prep-10": _job(**{**_ALONE, "prep_ms": 10.0}),
    "prep-20-w2": _job(**_ALONE, workers=2),
    "wait-20": _job(**_WAITING),
    "wait-10": _job(**{**_WAITING, "prep_ms": 1.0, "prep_wait_ms": 10.0}),
    "wait-20-w2": _job(**_WAITING, workers=2),
    "crowd-16": _job(**_CROWDED),
    "crowd-8": _job(**{**_CROWDED, "prep_ms": 8.0}),
    "crowd-16-w2": _job(**_CROWDED, workers=2),
    "compute-60": _job(**_COMPUTING, compute_ms=60.0),
    "compute-30": _job(**_COMPUTING, compute_ms=30.0),
    "cold-all": _job(cold_ratio=1.0, **_READING),
    "cold-half": _job(cold_ratio=0.5, **_READING),
    "cold-none": _job(**_READING),
    "late-15": _job(**_SMALL, late_ms=15.0, late_rank=1),
    "late-0": _job(**_SMALL),
    "apart-burst": _job(**_BURSTS),
    "apart-burst-w2": _job(**_BURSTS, workers=2),
    "apart-passes": _job(**_PASSES),
    "apart-passes-w2": _job(**_PASSES, workers=2),
    "apart-turns": _job(**_SMALL, steps=80, late_ms=18.0, late_turns=True),
    "apart-collects": _job(**_SMALL, steps=155, late_ms=200.0, late_rank=1, late_every=30),
    "apart-even": _job(**_SMALL, steps=80),
    "apart-busy-late": _job(**_BUSY, late_ms=90.0, late_rank=1),
    "apart-busy": _job(**_BUSY),
    "apart-two": _job(**_TWO, **_LATE_AND),
    "apart-two-w2": _job(**_TWO, **_LATE_AND, workers=2),
    "apart-two-even": _job(**_TWO),
    "apart-two-even-w2": _job(**_TWO, workers=2),
    "apart-slow": _job(**_SLOW),
    "apart-slow-unordered": _job(**_SLOW, in_order=False),
    "apart-slow-part": _job(**_SLOW, parted=True),
    "apart-slow-part-unordered": _job(**_SLOW, parted=True, in_order=False),
    "example-w1": _example("--batch-size 48 --workers 1"),
    "example-w2": _example("--batch-size 48 --workers 2"),
    "example-100": _example("--batch-size 8", 100),
    "example-200": _example("--batch-size 8", 200),
    "example-late": _example("--batch-size 8 --inject-straggler-ms 30"),
    "example-balanced": _example("--batch-size 8"),
}

#: (job, changes with spaces between them, job that they make of it); of compute, what it is to be is what the
#: recording has and so much more.
QUESTIONS = (
    ("ddp-100", "network.bandwidth=x2", "ddp-200"),
    ("ddp-200", "network.bandwidth=x0.5", "ddp-100"),
    ("ddp-100-fp16", "network.bandwidth=x2", "ddp-200-fp16"),
    ("ddp-200-fp16", "network.bandwidth=x0.5", "ddp-100-fp16"),
    ("manual-100", "network.bandwidth=x2", "manual-200"),
    ("manual-200", "network.bandwidth=x0.5", "manual-100"),
    ("example-100", "network.bandwidth=x2", "example-200"),
    ("example-200", "network.bandwidth=x0.5", "example-100"),
    ("ddp-100", "compression=fp16", "ddp-100-fp16"),
    ("ddp-200", "compression=fp16", "ddp-200-fp16"),
    ("ring-2", "ranks=3", "ring-3"),
    ("ring-2", "ranks=4", "ring-4"),
    ("ring-3", "ranks=4", "ring-4"),
    ("ring-4", "ranks=2", "ring-2"),
    ("delay-2", "network.latency=x2", "delay-4"),
    ("delay-4", "network.latency=x0.5", "delay-2"),
    ("groups-apart", "python=-42ms", "groups-together"),
    ("groups-together", "python=+42ms", "groups-apart"),
    ("groups-100", "network.bandwidth=x0.5", "groups-50"),
    ("groups-50", "network.bandwidth=x2", "groups-100"),
    ("groups-mixed-100", "network.bandwidth=x0.5", "groups-mixed-50"),
    ("groups-mixed-50", "network.bandwidth=x2", "groups-mixed-100"),
    ("groups-late", "straggler=0", "groups-even"),
    ("prep-20", "prep=x0.5", "prep-10"),
    ("prep-10", "prep=x2", "prep-20"),
    ("wait-20", "prep=x0.5", "wait-10"),
    ("wait-10", "prep=x2", "wait-20"),
    ("crowd-16", "prep=x0.5", "crowd-8"),
    ("crowd-8", "prep=x2", "crowd-16"),
    ("prep-20", "workers=2", "prep-20-w2"),
    ("prep-20-w2", "workers=1", "prep-20"),
    ("wait-20", "workers=2", "wait-20-w2"),
    ("wait-20-w2", "workers=1", "wait-20"),
    ("crowd-16", "workers=2", "crowd-16-w2"),
    ("crowd-16-w2", "workers=1", "crowd-16"),
    ("example-w1", "workers=2", "example-w2"),
    ("example-w2", "workers=1", "example-w1"),
    ("compute-60", "compute=-30ms", "compute-30"),
    ("compute-30", "compute=+30ms", "compute-60"),
    ("cold-all", "fetch=x0.5", "cold-half"),
    ("cold-half", "fetch=x2", "cold-all"),
    ("cold-all", "fetch=0", "cold-none"),
    ("cold-half", "fetch=0", "cold-none"),
    ("late-15", "straggler=0", "late-0"),
    ("example-late", "straggler=0", "example-balanced"),
)

#: The same of jobs that are held apart; they are counted by themselves.
HELD_APART = (
    ("apart-burst", "workers=2", "apart-burst-w2"),
    ("apart-burst-w2", "workers=1", "apart-burst"),
    ("apart-passes", "workers=2", "apart-passes-w2"),
    ("apart-passes-w2", "workers=1", "apart-passes"),
    ("apart-turns", "straggler=0", "apart-even"),
    ("apart-collects", "straggler=0", "apart-even"),
    ("apart-busy-late", "straggler=0", "apart-busy"),
    ("apart-two", "workers=2", "apart-two-w2"),
    ("apart-two", "straggler=0", "apart-two-even"),
    ("apart-two", "workers=2 straggler=0", "apart-two-even-w2"),
    ("apart-two-w2", "straggler=0", "apart-two-even-w2"),
    ("apart-two-even", "workers=2", "apart-two-even-w2"),
    ("apart-slow", "in_order=false", "apart-slow-unordered"),
    ("apart-slow-part", "in_order=false", "apart-slow-part-unordered"),
)

#: What each shape of the example is called.
SHAPES = {
    "loader-bound": "example-w1",
    "CPU-bound": "example-w2",
    "network-shaped": "example-100",
    "straggler": "example-late",
    "balanced": "example-balanced",
}
