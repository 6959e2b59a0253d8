"""Made-up histories: a fleet whose late hosts, slow commits and interfering jobs are known.

Ranks are simulated, not their statistics: each step of each rank takes its work, hosts add theirs, all wait for the
last, and the wait goes to it. Storage answers with latencies that drift and scatter, and longer while another job
writes. The constants describe a fleet; none is taken from the rules of the questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stashtrace.lab.history.run_files import SECTIONS, RunRows, file_name, parquet_bytes

SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3600 * 10**9
BEGIN_NS = 1_780_000_000 * SECOND
SHARED = "nfs4 store:/export"
STEPS = 60


@dataclass(frozen=True)
class Job:
    """One job of the fleet: what a step is made of, and how it varies."""

    command: tuple[str, ...]
    hosts: int = 2
    ranks_per_host: int = 4
    compute_ns: int = 180_000_000
    fetch_ns: int = 25_000_000
    link_ns: int = 20_000_000
    #: Scatter of the work of a rank in a step, and of whole runs, as parts.
    scatter: float = 0.01
    run_scatter: float = 0.008
    #: A rank that does more in each step, wherever it runs: saves, logs.
    busy_rank: int = -1
    busy_ns: int = 0
    #: Checkpoints: their distance and length; 0 for none.
    every_ns: int = 0
    write_ns: int = 0


@dataclass
class Fleet:
    """What is planted."""

    seed: int = 0
    runs: int = 60
    jobs: tuple[Job, ...] = (Job(("torchrun", "train.py")),)
    hosts: int = 12
    #: Host -> (part of its runs in which it is late, by how much, what takes longer).
    late_hosts: dict[str, tuple[float, int, str]] = field(default_factory=dict)
    #: Number of the commit -> growth of the job's compute from there on, as a part.
    slow_commits: dict[int, float] = field(default_factory=dict)
    commits: int = 1
    #: Scheduler gives the first hosts in alphabetical order to the first ranks.
    sorted_hosts: bool = True
    #: Factor on the reads of others while a job writes a checkpoint.
    write_slows: float = 1.0
    #: Hours between begins of runs, on average.
    between_hours: float = 3.0
    length_ns: int = 2 * HOUR
    instance: str = "p4d.24xlarge"


def commit(number: int) -> str:
    return f"{number:02x}" * 20


def host_name(number: int) -> str:
    return f"node{number:02d}"


def runs_of(fleet: Fleet) -> list[RunRows]:
    """The runs of a fleet, in the order of their begins."""
    return list(each_run(fleet))


def each_run(fleet: Fleet) -> Iterator[RunRows]:
    """The same one by one, as those of a large fleet have no room in memory."""
    random = np.random.default_rng(fleet.seed)
    begins = BEGIN_NS + np.cumsum(random.exponential(fleet.between_hours * HOUR, fleet.runs)).astype(np.int64)
    plans = [(int(begin), fleet.jobs[at % len(fleet.jobs)]) for at, begin in enumerate(begins)]
    lengths = (fleet.length_ns * random.uniform(0.7, 1.3, fleet.runs)).astype(np.int64)
    writes = [list(_checkpoints(job, begin, int(length))) for (begin, job), length in zip(plans, lengths, strict=True)]
    reach = int(lengths.max())
    for at, (begin, job) in enumerate(plans):
        end = begin + int(lengths[at])
        near = range(*np.searchsorted(begins, (begin - reach, end)).tolist())
        near_writes = [one for run in near if run != at for one in writes[run]]
        others = [one for one in near_writes if one[1] > begin and one[0] < end]
        number = at * fleet.commits // fleet.runs
        yield _run(fleet, random, at, begin, end, job, number, writes[at], others)


def write_history(folder: Path, fleet: Fleet) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for run in each_run(fleet):
        (folder / file_name(run)).write_bytes(parquet_bytes(run))


def _checkpoints(job: Job, begin: int, length: int) -> Iterator[tuple[int, int]]:
    at = begin + job.every_ns
    while job.every_ns and at + job.write_ns < begin + length:
        yield at, at + job.write_ns
        at += job.every_ns


def _run(
    fleet: Fleet,
    random: np.random.Generator,
    number: int,
    begin: int,
    end: int,
    job: Job,
    commit_number: int,
    writes: list[tuple[int, int]],
    others: list[tuple[int, int]],
) -> RunRows:
    chosen = random.choice(fleet.hosts, job.hosts, replace=False)
    names = [host_name(one) for one in (sorted(chosen) if fleet.sorted_hosts else chosen)]
    ranks = job.hosts * job.ranks_per_host
    host_of = [names[rank // job.ranks_per_host] for rank in range(ranks)]
    growth = 1.0
    for at, more in fleet.slow_commits.items():
        growth *= 1 + more if commit_number >= at else 1.0
    longer = random.normal(1.0, job.run_scatter)
    compute = job.compute_ns * growth * longer * random.normal(1.0, job.scatter, (STEPS, ranks))
    fetch = job.fetch_ns * random.gamma(20, 1 / 20, (STEPS, ranks))
    extra = {"compute": compute, "fetch": fetch}
    cause = dict.fromkeys(range(ranks), "compute")
    for host, (often, longer_ns, kind) in fleet.late_hosts.items():
        if host in names and random.random() < often:
            for rank in (rank for rank in range(ranks) if host_of[rank] == host):
                extra[kind][:, rank] += longer_ns * random.gamma(30, 1 / 30, STEPS)
                cause[rank] = kind
    if job.busy_rank >= 0:
        compute[:, job.busy_rank] += job.busy_ns
    arrive = compute + fetch
    last = arrive.argmax(axis=1)
    wait = arrive.max(axis=1)[:, None] - arrive
    link = job.link_ns * random.normal(1.0, 0.02, STEPS).clip(0.5)
    step = (arrive.max(axis=1) + link).astype(np.int64)
    out = RunRows(f"{fleet.seed:08x}{number:024x}", begin, end)
    _facts(out, fleet, job, names, ranks, commit_number)
    kinds = {"compute": compute, "fetch": fetch, "straggler": wait, "network": np.repeat(link[:, None], ranks, axis=1)}
    whole = {name: values.astype(np.int64) for name, values in kinds.items()}
    whole = {"step": np.repeat(step[:, None], ranks, axis=1), **whole}
    marks = {name: np.percentile(own, (10, 50, 90, 99), axis=0).astype(int).T.tolist() for name, own in whole.items()}
    means = {name: own.mean(axis=0).tolist() for name, own in whole.items()}
    steps = max((end - begin) * 9 // 10 // int(step.mean()), STEPS)
    for rank in range(ranks):
        for name in whole:
            quantiles = dict(zip(("p10_ns", "p50_ns", "p90_ns", "p99_ns"), marks[name][rank], strict=True))
            out.add("kind", kind=name, rank=rank, steps_count=int(steps), mean_ns=int(means[name][rank]), **quantiles)
        waited = np.where(last == rank, wait.sum(axis=1) / max(ranks - 1, 1), 0.0)
        named = {
            "longer_kind": cause[rank],
            "host": host_of[rank],
            "rank": rank,
            "last_count": int((last == rank).sum()),
        }
        out.add("rank", wait_ns=int(waited.mean()), median_wait_ns=int(np.median(waited)), **named)
    for name, values in {"step": step[:, None], **kinds}.items():
        out.add("steps", kind=name, steps_count=STEPS, values=values.mean(axis=1).astype(np.int64).tolist())
    _reads(out, fleet, random, begin, end, step.mean(), others)
    for low, high in writes:
        out.add("checkpoint", file_system=SHARED, begin_ns=low, end_ns=high, written_bytes=4_000_000_000)
    return out


def _facts(out: RunRows, fleet: Fleet, job: Job, hosts: list[str], ranks: int, commit_number: int) -> None:
    facts = {
        "ranks": ranks,
        "batch": 32,
        "device": "NVIDIA A100-SXM4-40GB",
        "hosts": len(hosts),
        "host_names": ",".join(hosts),
        "commit": commit(commit_number),
        "exit_code": 0,
        "command": " ".join(job.command),
        "launch": json.dumps(job.command),
        "instance": fleet.instance,
        "stashtrace": "0.1.0",
    }
    for name, value in facts.items():
        out.add_fact(name, value)


def _reads(
    out: RunRows,
    fleet: Fleet,
    random: np.random.Generator,
    begin: int,
    end: int,
    step_ns: float,
    others: list[tuple[int, int]],
) -> None:
    parts = 512
    edges = np.linspace(begin, end, parts + 1)
    part = (end - begin) / parts
    drift = [0.0]
    for more in random.normal(0, 0.1, parts - 1).tolist():
        drift.append(0.9 * drift[-1] + more)
    latency = 4_000_000 * np.exp(drift + random.normal(0, 0.15, parts))
    for low, high in others:
        overlap = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None) / part
        latency *= 1 + (fleet.write_slows - 1) * overlap
    counts = random.poisson(40, parts)
    # A step reads ahead for twice the usual latency; beyond that it waits.
    longer = 1 + 0.1 * np.clip(latency / 4_000_000 - 2, 0, None)
    steps = np.rint(part / step_ns / longer)
    place = {"file_system": SHARED, "mount": "/data", "begin_ns": begin, "end_ns": end}
    for section, values in (("reads_count", counts), ("reads_ns", counts * latency), ("steps_count", steps)):
        listed = values.astype(np.int64)
        sums = {SECTIONS[section].columns["value"].name: int(listed.sum())}
        out.add(section, values=listed.tolist(), **place, **sums)


def fleet_with_three_plants(seed: int) -> Fleet:
    """Return 60 runs with a late host, a slow commit and a job whose checkpoints slow the reads of others."""
    writer = Job(("torchrun", "writer.py"), every_ns=20 * MINUTE, write_ns=90 * SECOND)
    return Fleet(
        seed=seed,
        runs=60,
        jobs=(Job(("torchrun", "train.py")), writer),
        commits=6,
        late_hosts={"node07": (0.8, 40_000_000, "fetch")},
        slow_commits={3: 0.18},
        write_slows=3.0,
        between_hours=1.0,
    )
