"""Identify the processes of a run: parents, ranks, workers and launchers.

Works on file headers and core rows, before any decoder runs. ``metadata`` rows, which the job itself wrote, take
precedence over its environment, because every process that a launcher starts inherits the launcher's environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from stashtrace.collectors.decode_context import DecodeContext, DeviceTime, ProcessIdentity
from stashtrace.errors import UsageError
from stashtrace.format.stash_file import StashFile
from stashtrace.loading.clocks.host_clock import HostClock, RunClocks
from stashtrace.record.launchers import FIRST_SPECIAL_STEP
from stashtrace.schema.kinds import ProcessRole, ThreadRole
from stashtrace.schema.possible import rank_number
from stashtrace.schema.trace import RawProcess
from stashtrace.schema.tracks import TrackRegistry

#: Records that only training processes write.
TRAINING_RECORDS = ("phase_span", "collective_call", "group")


@dataclass(slots=True)
class ProcessFacts:
    """Facts about one process, known before its rows are decoded."""

    #: From the file header.
    metadata: Mapping[str, Any]
    #: Start on the common clock.
    begin_ns: int = 0
    #: ``metadata`` rows, which the job wrote after its start.
    learned: Mapping[str, str] = field(default_factory=dict)
    #: Rows per record name.
    row_counts: Mapping[str, int] = field(default_factory=dict)
    #: Whether a thread has the role of a DataLoader worker.
    worker_thread: bool = False

    @property
    def pid(self) -> int:
        """Process id on its host."""
        return int(self.metadata.get("pid", 0))

    @property
    def environment(self) -> Mapping[str, Any]:
        """Launcher variables of its environment, from the file header."""
        env = self.metadata.get("env")
        return env if isinstance(env, dict) else {}

    def said(self, name: str, otherwise: int = -1) -> int:
        """Return a number from the ``metadata`` rows of the process; ``otherwise`` if there is none."""
        number = rank_number(self.learned.get(name, "").strip())
        return number if number >= 0 else otherwise

    @property
    def trains(self) -> int:
        """Number of rows that only a training process writes."""
        return sum(self.row_counts.get(name, 0) for name in TRAINING_RECORDS)


@dataclass(slots=True)
class Identity:
    """Identity of one process; ``parent`` is an index into the list of facts, -1 if the parent is not traced.

    ``generation`` counts the restarts of an elastic job; -1 means that the process outlives them, as torchrun does.
    """

    parent: int = -1
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    role: ProcessRole = ProcessRole.OTHER
    worker_id: int = -1
    name: str = ""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run: its file, its clocks and its identity."""

    file: StashFile
    #: Records that were read before decoding.
    core: RawProcess
    clock: HostClock
    facts: ProcessFacts
    #: Of a chosen process, ``parent`` is the number of another chosen process.
    identity: Identity
    #: Its ``process_id`` once it is chosen, -1 before.
    number: int = -1
    #: (device index, clock) -> its mapping to the common clock.
    device_times: Mapping[tuple[int, int], DeviceTime] = field(default_factory=dict)

    @property
    def begin_ns(self) -> int:
        """Its start on the common clock."""
        return self.clock.start_ns(self.file.metadata)

    def context(self, raw: RawProcess, tracks: TrackRegistry, tables: frozenset[str] | None) -> DecodeContext:
        """Return the context that the decoders of its rows take."""
        who = self.identity
        identity = ProcessIdentity(
            self.number, self.facts.pid, who.rank, who.local_rank, who.world_size, who.role, who.worker_id, who.parent
        )
        return DecodeContext(
            identity, tracks=tracks, texts=raw.strings, clock=self.clock, wanted=tables, device_times=self.device_times
        )


def identify_processes(
    files: Sequence[StashFile], core: Sequence[RawProcess], clocks: RunClocks, generation: int | None, run_id: str
) -> list[Process]:
    """Return all processes of a run with their identities, in the order of the files.

    ``files``, ``core``: each file, and the records read from it. ``generation``: as in :func:`identify`. ``run_id``:
    for the message. Raises UsageError if the job has no start with that number.
    """
    clocks_of = [clocks.of(raw) for raw in core]
    facts = [_facts(raw, file, clock) for raw, file, clock in zip(core, files, clocks_of, strict=True)]
    identities = identify(facts, generation)
    _, known = generations(identities)
    if generation is not None and generation not in known:
        count = f"{len(known)} start{'s' if len(known) > 1 else ''}" if known else "no second start"
        raise UsageError(f"run {run_id[:8]} has no start {generation}", hint=f"it has {count}, counted from 0")
    return [Process(*one) for one in zip(files, core, clocks_of, facts, identities, strict=True)]


def leader(processes: Sequence[Process]) -> Process:
    """Return the process of the lowest rank; the first process if none has a rank."""
    ranked = [p for p in processes if p.identity.role is ProcessRole.RANK]
    return min(ranked, key=lambda p: p.identity.rank) if ranked else processes[0]


_ROLE_ORDER = {ProcessRole.RANK: 0, ProcessRole.WORKER: 1, ProcessRole.OTHER: 2, ProcessRole.LAUNCHER: 3}


def choose_processes(processes: Sequence[Process], ranks: Collection[int] | None, path: str) -> list[Process]:
    """Return the processes to load, numbered in the order of the ``processes`` table.

    ``processes``: all processes of the run, with their clocks on the common time. ``ranks``: ranks to load, with their
    workers; all if None. Processes that serve no rank are always loaded. Raises UsageError if a rank does not exist.
    """
    there = {p.identity.rank for p in processes if p.identity.role is ProcessRole.RANK}
    if ranks is not None and not set(ranks) <= there:
        raise UsageError(
            f"{path} has no rank {', '.join(map(str, sorted(set(ranks) - there)))}",
            hint=f"it has {', '.join(map(str, sorted(there)))}",
        )
    shown, _ = generations([p.identity for p in processes])
    chosen = [
        index
        for index, who in enumerate(p.identity for p in processes)
        if who.generation in (-1, shown) and (ranks is None or who.rank < 0 or who.rank in ranks)
    ]

    def place(index: int) -> tuple[bool, int, int, int, int, str]:
        who, facts = processes[index].identity, processes[index].facts
        name = processes[index].file.name
        return who.rank < 0, who.rank, _ROLE_ORDER[who.role], who.worker_id, facts.begin_ns, name

    chosen.sort(key=place)
    number = {old: new for new, old in enumerate(chosen)}
    return [
        replace(
            processes[old],
            number=new,
            identity=replace(processes[old].identity, parent=number.get(processes[old].identity.parent, -1)),
        )
        for new, old in enumerate(chosen)
    ]


def own_first(processes: Sequence[Process], others: Sequence[StashFile]) -> list[Process]:
    """Return chosen processes numbered again: those whose files are among ``others`` behind all others."""
    if not others:
        return list(processes)
    known = {id(file) for file in others}
    ordered = sorted(processes, key=lambda process: id(process.file) in known)
    number = {process.number: new for new, process in enumerate(ordered)}
    return [
        replace(p, number=new, identity=replace(p.identity, parent=number.get(p.identity.parent, -1)))
        for new, p in enumerate(ordered)
    ]


def _facts(raw: RawProcess, file: StashFile, clock: HostClock) -> ProcessFacts:
    """Collect the facts about one process from its header and its core records."""
    learned: dict[str, str] = {}
    rows = raw.records.get("metadata")
    if rows is not None:
        for row in np.sort(rows.rows, order="ticks", kind="stable"):
            learned[raw.strings.get(int(row["key_id"]), "")] = raw.strings.get(int(row["value_id"]), "")
    threads = raw.records.get("thread_info")
    worker = threads is not None and bool((threads.rows["role_code"] == int(ThreadRole.WORKER)).any())
    counts = file.row_counts()
    if "worker_id" not in learned and counts.get("batch") and not counts.get("phase_span"):
        batches = file.load(("batch",)).records.get("batch")
        if batches is not None and (number := int(batches.rows["worker_id"].max())) >= 0:
            learned["worker_id"] = str(number)
    return ProcessFacts(raw.metadata, clock.own_start_ns(raw.metadata), learned, counts, worker)


def identify(processes: Sequence[ProcessFacts], generation: int | None = None) -> list[Identity]:
    """Return the parents, ranks and roles of all processes of a run.

    ``generation``: start of an elastic job that has the ranks; by default the start that trained most, and of equals
    the last. Processes of other starts have no rank.
    """
    identities = [Identity(parent=p) for p in _parents(processes)]
    workers = {i for i, p in enumerate(processes) if _is_worker(i, processes, identities)}
    known = places([p.environment for p in processes], workers)
    ranks = [p.said("rank", place.rank) for p, place in zip(processes, known, strict=True)]
    _count_generations(processes, identities, ranks, known, workers)
    chosen = generation if generation is not None else _main_generation(processes, identities)
    for index, identity in enumerate(identities):
        if identity.generation not in (-1, chosen):
            ranks[index] = -1
    leaders = _leaders(processes, identities, ranks, workers, chosen)
    for rank, index in leaders.items():
        facts, identity = processes[index], identities[index]
        identity.role = ProcessRole.RANK
        identity.rank = rank
        identity.local_rank = facts.said("local_rank", known[index].local_rank)
        identity.world_size = facts.said("world_size", known[index].world_size)
    for index, identity in enumerate(identities):
        if identity.role is not ProcessRole.RANK:
            _serve(index, identities, processes, ranks, leaders, workers)
    for index in leaders.values():
        for ancestor in _ancestors(index, identities):
            if identities[ancestor].rank < 0:
                identities[ancestor].role = ProcessRole.LAUNCHER
    for facts, identity in zip(processes, identities, strict=True):
        identity.name = _name(facts, identity)
    return identities


def generations(identities: Sequence[Identity]) -> tuple[int, list[int]]:
    """Return (start of an elastic job that has the ranks, all starts); (-1, []) if the job is not elastic."""
    known = sorted({i.generation for i in identities if i.generation >= 0})
    shown = next((i.generation for i in identities if i.role is ProcessRole.RANK and i.generation >= 0), -1)
    return shown, known


def _parents(processes: Sequence[ProcessFacts]) -> list[int]:
    """Return the index of each parent: same boot and pid, with the named incarnation, else the last begun before."""
    # Containers of one host share its boot, and each has a process 1.
    here = [tuple(str(p.metadata.get(n, "")) for n in ("boot_id", "host", "pidns")) for p in processes]
    by_pid: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for index, facts in enumerate(processes):
        by_pid.setdefault((here[index], facts.pid), []).append(index)
    parents = []
    for index, facts in enumerate(processes):
        candidates = by_pid.get((here[index], int(facts.metadata.get("ppid", -1))), [])
        named = [
            c
            for c in candidates
            if processes[c].metadata.get("incarnation") == facts.metadata.get("parent_incarnation")
        ]
        begun = [c for c in candidates if processes[c].begin_ns <= facts.begin_ns and c != index]
        choice = named or begun
        parent = max(choice, key=lambda c: processes[c].begin_ns, default=-1)
        parents.append(-1 if parent == index else parent)
    for index in range(len(parents)):  # a damaged header must not make a cycle
        seen, at = {index}, parents[index]
        while at >= 0 and at not in seen:
            seen.add(at)
            at = parents[at]
        if at >= 0:
            parents[index] = -1
    return parents


def _count_generations(
    processes: Sequence[ProcessFacts],
    identities: Sequence[Identity],
    ranks: Sequence[int],
    known: Sequence[Place],
    workers: set[int],
) -> None:
    """Number the starts of an elastic job: when one rank begins a second time, the next start begins for all ranks.

    torchrun stops all ranks before it starts any again, so the starts do not overlap in time. Its count of restarts
    is not usable: agents that joined later have another count, and it misses changes of membership.
    """
    elastic = [i for i in range(len(processes)) if known[i].elastic and ranks[i] >= 0 and i not in workers]
    begun_by_torchrun = [i for i in elastic if not any(known[a].elastic for a in _ancestors(i, identities))]
    current, restarts, seen = 0, "", set[tuple[object, ...]]()
    for index in sorted(begun_by_torchrun, key=lambda i: (processes[i].begin_ns, i)):
        metadata = processes[index].metadata
        names: set[tuple[object, ...]] = {
            ("rank", ranks[index]),
            (metadata.get("host"), metadata.get("ppid"), known[index].local_rank),
        }
        count = str(processes[index].environment.get("TORCHELASTIC_RESTART_COUNT", ""))
        # A child inherits the variables of a rank without a file, but does not train and does not raise the count.
        if names & seen and (processes[index].trains or count != restarts):
            current, seen = current + 1, set()
        restarts, seen = count, seen | names
        identities[index].generation = current
    for index, identity in enumerate(identities):
        for ancestor in _ancestors(index, identities):
            if identity.generation < 0 and identities[ancestor].generation >= 0:
                identity.generation = identities[ancestor].generation


def _main_generation(processes: Sequence[ProcessFacts], identities: Sequence[Identity]) -> int:
    """Return the generation that trained most; of equals the last."""
    trained: dict[int, int] = {}
    for facts, identity in zip(processes, identities, strict=True):
        if identity.generation >= 0:
            trained[identity.generation] = trained.get(identity.generation, 0) + facts.trains
    return max(trained, key=lambda number: (trained[number], number), default=-1)


def _ancestors(index: int, identities: Sequence[Identity]) -> list[int]:
    indices = []
    at = identities[index].parent
    while at >= 0:
        indices.append(at)
        at = identities[at].parent
    return indices


def _is_worker(index: int, processes: Sequence[ProcessFacts], identities: Sequence[Identity]) -> bool:
    facts = processes[index]
    if facts.learned.get("role") == "worker" or facts.worker_thread:
        return True
    makes_batches = facts.row_counts.get("batch", 0) > 0 and not facts.trains
    return makes_batches and any(processes[a].row_counts.get("batch", 0) for a in _ancestors(index, identities))


def _leaders(
    processes: Sequence[ProcessFacts],
    identities: Sequence[Identity],
    ranks: Sequence[int],
    workers: set[int],
    generation: int,
) -> dict[int, int]:
    """Map each rank to its process: the one that trains, else the topmost one with the rank in its environment."""
    candidates: dict[int, list[int]] = {}
    for index, rank in enumerate(ranks):
        if rank >= 0 and index not in workers:
            candidates.setdefault(rank, []).append(index)
    leaders: dict[int, int] = {}
    for rank, indices in sorted(candidates.items()):
        leaders[rank] = min(
            indices,
            key=lambda i: (
                "rank" not in processes[i].learned,
                not processes[i].trains,
                len(_ancestors(i, identities)),
                processes[i].begin_ns,
                -int(processes[i].metadata.get("incarnation", 0)),
            ),
        )
    if leaders or not processes:
        return leaders
    # No process has a rank: this is a job of one process, or not a training job.
    roots = [i for i in range(len(processes)) if i not in workers and identities[i].generation in (-1, generation)]
    best = max(
        roots,
        default=0,
        key=lambda i: (
            processes[i].trains,
            processes[i].row_counts.get("batch", 0),
            -len(_ancestors(i, identities)),
            sum(processes[i].row_counts.values()),
            -processes[i].begin_ns,
        ),
    )
    return {0: best}


def _serve(
    index: int,
    identities: Sequence[Identity],
    processes: Sequence[ProcessFacts],
    ranks: Sequence[int],
    leaders: Mapping[int, int],
    workers: set[int],
) -> None:
    """Set the rank that a process without a rank works for."""
    identity = identities[index]
    master = next((a for a in _ancestors(index, identities) if identities[a].role is ProcessRole.RANK), -1)
    if master < 0 and index in workers:  # its parent left no file, but the environment was inherited
        master = leaders.get(ranks[index], -1)
    if master >= 0:
        served = identities[master]
        identity.rank, identity.local_rank = served.rank, served.local_rank
        identity.world_size = served.world_size
    if index in workers:
        identity.role = ProcessRole.WORKER
        identity.worker_id = processes[index].said("worker_id")


def _name(facts: ProcessFacts, identity: Identity) -> str:
    if identity.role is ProcessRole.WORKER:
        return f"worker {identity.worker_id}" if identity.worker_id >= 0 else "worker"
    argv = facts.metadata.get("argv")
    words = [str(a) for a in argv] if isinstance(argv, list) else []
    program = os.path.basename(words[0]) if words else os.path.basename(str(facts.metadata.get("exe", "")))
    if program.startswith("python"):
        if "-m" in words[1:-1]:
            return words[words.index("-m") + 1]
        if "-c" in words[1:-1]:
            return f"{program} -c"
        return next((os.path.basename(w) for w in words[1:] if not w.startswith("-")), program)
    return program


# Environment variables by which launchers give processes their rank, local rank and world size.
#
# A process often has the variables of several launchers at once: torchrun under ``srun`` under a batch script. They
# number different things, so only one launcher is used for the whole run: the innermost one whose variables any
# process has.


class Place(NamedTuple):
    """Rank, local rank and world size of a process; -1 is unknown."""

    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    elastic: bool = False


class _Launcher(NamedTuple):
    """Variables of one launcher; without the ``needed`` ones, the others mean something else."""

    rank: str
    local_rank: tuple[str, ...]
    world_size: tuple[str, ...]
    needed: tuple[str, ...] = ()
    elastic: bool = False


#: Innermost first. A pod of Kubeflow has RANK too, with which it counts pods, until torchrun sets it for each process.
_LAUNCHERS = (
    _Launcher("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",), ("GROUP_RANK",), elastic=True),
    _Launcher("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    _Launcher("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"), ("PMI_SIZE",)),
    _Launcher("PALS_RANKID", ("PALS_LOCAL_RANKID",), ("PMI_SIZE",)),
    _Launcher("PMIX_RANK", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher("FLUX_TASK_RANK", ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    _Launcher("SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher("JOB_COMPLETION_INDEX", (), ()),
)


def places(environments: Sequence[Mapping[str, Any]], aside: Collection[int] = ()) -> list[Place]:
    """Return the place of each process of a run, by the innermost launcher whose variables any of them has.

    ``environments``: variables of each process. ``aside``: processes that do not decide which launcher is used: a
    worker may have variables that its rank set for itself.
    """
    for launcher in _LAUNCHERS:
        known = [_place(launcher, environment) for environment in environments]
        if any(place.rank >= 0 for index, place in enumerate(known) if index not in aside):
            return known
    return [Place()] * len(environments)


def _place(launcher: _Launcher, environment: Mapping[str, Any]) -> Place:
    rank = _number(environment, launcher.rank)
    if rank < 0 or any(name not in environment for name in launcher.needed):
        return Place()
    world = _number(environment, *launcher.world_size)
    if launcher.rank == "SLURM_PROCID" and not 0 <= _number(environment, "SLURM_STEP_ID") < FIRST_SPECIAL_STEP:
        world = -1  # a batch script, and what it starts without srun, has task number 0 but is not one of the tasks
    return Place(rank, _number(environment, *launcher.local_rank), world if world > rank else -1, launcher.elastic)


def _number(environment: Mapping[str, Any], *names: str) -> int:
    for name in names:
        number = rank_number(str(environment.get(name, "")).strip())
        if number >= 0:
            return number
    return -1
