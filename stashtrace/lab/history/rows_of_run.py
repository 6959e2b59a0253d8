"""Add a run to a history: what the job was, where its time went by rank, who was late, what it read and wrote."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.compare.job_identity import job_facts, recording_id
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun, steps_of_run
from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.findings import Summary, summarize
from stashtrace.analysis.intervals import Int64, TimeSet, value_at, window_at
from stashtrace.analysis.io.calls import READING, WRITING, moves
from stashtrace.analysis.io.data_files import data_files
from stashtrace.analysis.stalls.budget import coded_intervals, stalls, straggler_causes
from stashtrace.analysis.steps.step_time import step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.stragglers.causes import surplus_over_peers
from stashtrace.analysis.stragglers.stragglers import stragglers
from stashtrace.errors import FormatError, MissingDataError
from stashtrace.lab.history.policy import POLICY
from stashtrace.lab.history.run_files import OUTSIDE, SECTIONS, Place, RunRows
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, PhaseFlag, ProcessRole, StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.scrubbing.secrets import scrub_arguments, scrub_urls
from stashtrace.summary.words import claim_text, findings_of

_QUANTILES = {"p10_ns": 10, "p50_ns": 50, "p90_ns": 90, "p99_ns": 99}
_CLAIMS = "verdict"
#: Where the machines of a provider say of which type they are.
_VENDOR, _PRODUCT = Path("/sys/class/dmi/id/sys_vendor"), Path("/sys/class/dmi/id/product_name")


def rows_of_run(trace: Trace, launch: Mapping[str, Any]) -> RunRows:
    """Return the rows of a run.

    ``launch``: content of its ``run.json``; empty for files of other tools. Raises FormatError if nothing says when
    the run was.
    """
    facts = run_facts(trace)
    origin = facts.get("origin_realtime_ns", "")
    if not origin.lstrip("-").isdecimal() or not len(trace.processes):
        raise FormatError(
            f"{trace.path} does not say when it was recorded, so it has no place in a history",
            hint="histories are of runs of `stashtrace run`",
        )
    origin_ns = int(origin)
    processes = trace.processes
    begin = launch.get("begin_realtime_ns", origin_ns + int(processes["begin_ns"].min()))
    end = launch.get("end_realtime_ns", origin_ns + int(processes["end_ns"].max()))
    out = RunRows(recording_id(trace), begin, max(end, begin))
    try:
        steps: Table | None = find_steps(trace)
    except MissingDataError:  # a job that is no training still takes time and money
        steps = None
    run = steps_of_run(trace) if steps is not None else None
    _add_facts(out, trace, run, launch, facts)
    _add_ranks(out, trace, steps)
    if run is not None and steps is not None:
        _add_kinds(out, trace, steps)
        for kind, values in run.condensed(POLICY.kept_steps).times_ns.items():
            out.add("steps", kind=kind, steps_count=run.steps_count, values=values.tolist())
        _add_claims(out, summarize(trace))
    host = os.uname().nodename
    names = {trace.text(code) for code in np.unique(processes["host_code"]).tolist()}
    mounts = mounts_of_host(host, launch.get("boot_id", "")) if host in names else ()
    add_traffic(out, trace, steps, mounts, launch.get("working_directory", "/"), origin_ns)
    add_energy(out, trace)
    for loss in trace.losses.rows():
        where, name = trace.text(loss["collector_code"]), trace.text(loss["name_code"])
        out.add("loss", loss=name, collector=where, lost_count=loss["lost_count"])
    return out


def _add_facts(
    out: RunRows, trace: Trace, run: StepsOfRun | None, launch: Mapping[str, Any], recorded: Mapping[str, str]
) -> None:
    """Append what the job was, and what ``check`` needs in addition to the series."""
    facts = run.facts if run is not None else job_facts(trace)
    for name, value in facts.items():
        out.add_fact(name, scrub_arguments([value])[0] if isinstance(value, str) else value)
    for name in ("commit", "exit_code", "signal", "job"):
        out.add_fact(name, launch.get(name, recorded.get(name)))
    hosts = {trace.text(code) for code in np.unique(trace.processes["host_code"]).tolist()} - {""}
    out.add_fact("host_names", ",".join(sorted(hosts)))
    out.add_fact("launch", json.dumps(scrub_arguments(list(launch.get("command", ()))), ensure_ascii=False))
    out.add_fact("directory", scrub_urls(launch.get("working_directory", "")))
    out.add_fact("instance", _instance() if os.uname().nodename in hosts else None)
    if run is None:
        return
    out.add_fact("cpu_wait_ns", run.cpu_wait_ns)
    out.add_fact("worker_wait_ns", run.worker_wait_ns)
    if run.cpus is not None:
        out.add_fact("cpus", json.dumps(asdict(run.cpus)))


def _instance() -> str | None:
    """Return the type of this machine where its provider writes it into the firmware's table, as EC2 does."""
    try:
        vendor, product = (path.read_text(encoding="utf-8").strip() for path in (_VENDOR, _PRODUCT))
    except (OSError, UnicodeDecodeError):
        return None
    return product if vendor == "Amazon EC2" else None


def _add_kinds(out: RunRows, trace: Trace, steps: Table) -> None:
    """Append mean and quantiles of each kind in the counted steps of each rank."""
    counted = step_time_steps(steps)
    pairs = GroupBy(counted["rank"], counted["step"])
    table = stalls(trace, warmup=True)
    table = table.take(pairs.find(table["rank"], table["step"]) >= 0)
    walls = counted["end_ns"] - counted["begin_ns"]
    sums = GroupBy(table["kind"], table["rank"], table["step"])
    spent = sums.sum(table["stall_ns"])
    ranks = GroupBy(counted["rank"])
    sizes = dict(zip(ranks.values.tolist(), ranks.sizes.tolist(), strict=True))
    parts = [(STEP, one, walls[rows]) for one, rows in ranks.items()]
    parts += [(kind, one, spent[rows]) for kind, one, rows in GroupBy(*sums.keys[:2]).items()]
    for name, one, values in parts:
        if not values.any():
            continue
        whole = np.concatenate([values, np.zeros(sizes[one] - len(values), dtype=np.int64)])
        marks = np.percentile(whole, list(_QUANTILES.values()), method="inverted_cdf").astype(np.int64)
        quantiles = dict(zip(_QUANTILES, marks.tolist(), strict=True))
        out.add("kind", kind=name, rank=one, steps_count=sizes[one], mean_ns=round(float(whole.mean())), **quantiles)


def _add_ranks(out: RunRows, trace: Trace, steps: Table | None) -> None:
    processes = trace.processes
    ranks = processes.take((processes["role_code"] == ProcessRole.RANK) & (processes["rank"] >= 0))
    hosts = dict(zip(ranks["rank"].tolist(), ranks["host_code"].tolist(), strict=True))
    waited = _waits_for(trace, steps)
    for rank, host in sorted(hosts.items()):
        mean_ns, median_ns, last_count, kind = waited.get(rank, (0, 0, 0, ""))
        named = {"longer_kind": kind, "host": trace.text(host), "rank": rank}
        out.add("rank", last_count=last_count, wait_ns=mean_ns, median_wait_ns=median_ns, **named)


def _waits_for(trace: Trace, steps: Table | None) -> dict[int, tuple[int, int, int, str]]:
    """Return per rank: what the mean other rank waited for it, in a step and the median step; how often; its work."""
    if steps is None or len(trace.ranks) < 2:
        return {}
    counted = step_time_steps(steps)
    try:
        causes, found = straggler_causes(trace, warmup=True), stragglers(trace)
    except MissingDataError:  # no collectives: nobody waits for anybody
        return {}
    pairs = GroupBy(counted["rank"], counted["step"])
    causes = causes.take((pairs.find(causes["rank"], causes["step"]) >= 0) & (causes["cause_rank"] >= 0))
    numbers = np.unique(counted["step"])
    last = dict(zip(found["rank"].tolist(), found["last_count"].tolist(), strict=True))
    others = max(len(trace.ranks) - 1, 1)
    waits: dict[int, tuple[int, int, int, str]] = {}
    for rank, rows in GroupBy(causes["cause_rank"]).items():
        in_step = np.zeros(len(numbers), dtype=np.int64)
        np.add.at(in_step, np.searchsorted(numbers, causes["step"][rows]), causes["stall_ns"][rows])
        waits[rank] = (
            round(float(in_step.mean()) / others),
            round(float(np.median(in_step)) / others),
            last.get(rank, 0),
            "",
        )
    worst = sorted(waits, key=lambda rank: -waits[rank][0])[: POLICY.examined_ranks_count]
    for rank in worst:
        longer = surplus_over_peers(trace, counted, rank, [int(r) for r in trace.ranks if r != rank])
        if longer and max(longer.values()) > 0:
            waits[rank] = (*waits[rank][:3], max(longer, key=lambda kind: longer[kind]))
    return waits


def _add_claims(out: RunRows, tables: Summary) -> None:
    for finding in findings_of(tables.findings, tables.evidence):
        row = finding.row
        if row["section"] == _CLAIMS:
            text = claim_text(finding)
            if text:
                out.add("verdict", claim=row["kind"], sentence=text, rank=row["rank"], stall_ns=max(row["stall_ns"], 0))


def launch_facts(directory: Sequence[str] | str | Path) -> dict[str, Any]:
    """Return what ``run.json`` says of a run; nothing where it does not say it."""
    from stashtrace.files.run_facts import read_facts
    from stashtrace.format.reader import RUN_FILE

    try:
        return read_facts(Path(str(directory)) / RUN_FILE)
    except (OSError, ValueError):  # files of other tools, or a damaged run, of which loading has said so
        return {}


def add_run(place: Place, trace: Trace, directory: Path) -> str:
    """Add a loaded run; return a sentence about it.

    Raises FormatError if the run does not say when it was. Raises OutputError if the file cannot be written.
    """
    name = place.add(rows_of_run(trace, launch_facts(directory)))
    if name is None:
        return f"the run is in the history {place.text} already"
    return f"added to the history {place.text}: {name}"


def add_traffic(
    out: RunRows, trace: Trace, steps: Table | None, mounts: Sequence[Mount], directory: str, origin_ns: int
) -> None:
    """Append reads and checkpoints.

    ``steps``: of all ranks, if there are any. ``mounts``: of the host, empty if they are not known: then there is
    nothing to append, as it is unknown which runs share a file system. ``directory``: of the job, for paths without
    one. ``origin_ns``: of the trace's clock, since 1970.
    """
    systems = _systems(trace, mounts, directory)
    if not systems:
        return
    begin, end = _span(trace)
    part_ns = max(POLICY.shortest_part_ns, -(-(end - begin) // POLICY.parts_of_run_count))
    parts_count = max(-(-(end - begin) // part_ns), 1)
    edges = begin + part_ns * np.arange(parts_count + 1)
    points = {mount.name: mount.point for mount in systems.values()}
    names = sorted(points)
    of_path = np.full(len(trace.strings), -1, dtype=np.int64)
    for code, mount in systems.items():
        of_path[code] = names.index(mount.name)
    checkpoints = _checkpoints(trace)
    counts = np.zeros((len(names), parts_count), dtype=np.int64)
    spent = np.zeros_like(counts)
    written = np.zeros((len(names), max(len(checkpoints.begin), 1)), dtype=np.int64)
    is_data = data_files(trace)
    for piece in trace.io_pieces():
        path, move = piece["path_code"], moves(piece)
        system = of_path[path]
        reads = (move == READING) & (system >= 0) & is_data[path]
        at = np.clip((piece["begin_ns"][reads] - begin) // part_ns, 0, parts_count - 1)
        np.add.at(counts, (system[reads], at), 1)
        np.add.at(spent, (system[reads], at), piece["end_ns"][reads] - piece["begin_ns"][reads])
        if len(checkpoints.begin):
            inside = window_at(piece["begin_ns"], checkpoints.begin, checkpoints.end)
            writes = (move == WRITING) & (system >= 0) & (inside >= 0)
            np.add.at(written, (system[writes], inside[writes]), np.maximum(piece["result_bytes"][writes], 0))
    ends = _steps_ended(steps, edges)
    longest = [at for at in np.argsort(-spent.sum(axis=1)).tolist() if counts[at].any()][: POLICY.file_systems_count]
    for at in longest:
        place = {"mount": points[names[at]], "begin_ns": origin_ns + begin, "end_ns": origin_ns + int(edges[-1])}
        for section, values in (("reads_count", counts[at]), ("reads_ns", spent[at]), ("steps_count", ends)):
            sums = {SECTIONS[section].columns["value"].name: int(values.sum())}
            out.add(section, file_system=names[at], values=values.tolist(), **place, **sums)
    _add_checkpoints(out, checkpoints, written, names, origin_ns)


def _systems(trace: Trace, mounts: Sequence[Mount], directory: str) -> dict[int, Mount]:
    """Return the file system of each path, by its code; folders are looked up once."""
    found: dict[int, Mount] = {}
    if not mounts:
        return found
    of_folder: dict[str, Mount | None] = {}
    codes: set[int] = set()
    for piece in trace.io_pieces():
        codes.update(np.unique(piece["path_code"]).tolist())
    for code in codes - {0}:
        path = trace.text(code)
        folder = path.rpartition("/")[0] or "/"
        if folder not in of_folder:
            of_folder[folder] = file_system_of(folder, mounts, directory)
        mount = of_folder[folder]
        if mount is not None:
            found[code] = mount
    return found


def _span(trace: Trace) -> tuple[int, int]:
    processes = trace.processes
    begin, end = int(processes["begin_ns"].min()), int(processes["end_ns"].max())
    return begin, max(end, trace.io_span_ns[1], begin + 1)


def _steps_ended(steps: Table | None, edges: Int64) -> Int64:
    """Return how many steps of the lowest rank ended in each part."""
    if steps is None or not len(steps):
        return np.zeros(len(edges) - 1, dtype=np.int64)
    ends = steps["end_ns"][steps["rank"] == steps["rank"].min()]
    return np.histogram(ends, edges)[0].astype(np.int64)


def _checkpoints(trace: Trace) -> TimeSet:
    phases = trace.phases
    chosen = (phases["phase_code"] == Phase.CHECKPOINT) & ((phases["phase_flags"] & PhaseFlag.NESTED) == 0)
    chosen &= phases["end_ns"] > phases["begin_ns"]
    return TimeSet.of_rows(phases, chosen)


def _add_checkpoints(out: RunRows, checkpoints: TimeSet, written: Int64, names: Sequence[str], origin_ns: int) -> None:
    """Append a row for each checkpoint and file system that it wrote to."""
    longest = np.argsort(checkpoints.begin - checkpoints.end, kind="stable")[: POLICY.checkpoints_count]
    for at in np.sort(longest).tolist():
        for system in np.flatnonzero(written[:, at]).tolist():
            out.add(
                "checkpoint",
                file_system=names[system],
                written_bytes=int(written[system, at]),
                begin_ns=origin_ns + int(checkpoints.begin[at]),
                end_ns=origin_ns + int(checkpoints.end[at]),
            )


#: Types of file systems whose source names a server, the same on every host that mounts it.
_SHARED = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|cifs|smb3|afs|9p|glusterfs|pvfs2|orangefs|panfs|wekafs|virtiofs|fuse\.(?!overlayfs|portal)"
    r".+"
)
#: Types that hold no files of a job.
_NO_FILES = frozenset(
    ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "debugfs", "tracefs", "securityfs", "bpf")
)
#: Name and password in a source of cifs, which is no URL.
_USER = re.compile(r"^//[^/@]*@")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry of the mount table."""

    #: Where it is mounted.
    point: str
    #: Name of the file system: equal for two mounts of one, on whichever host if it is a shared one.
    name: str


def mounts_of_host(host: str, boot_id: str, listing: Path = Path("/proc/self/mountinfo")) -> tuple[Mount, ...]:
    """Return the file systems that this process sees, the last mounted first.

    ``host``, ``boot_id``: distinguish file systems of this host from those of others; containers of one host share the
    boot id, whatever they are called. ``listing``: what is read; for tests. Empty where it cannot be read.
    """
    try:
        text = listing.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if not dash or len(words) < 5 or len(kind) < 2 or kind[0] in _NO_FILES:
            continue
        source = _USER.sub("//", scrub_urls(_plain(kind[1])))
        is_shared = _SHARED.fullmatch(kind[0]) is not None
        own = f"{kind[0]} {source}" if is_shared else f"{kind[0]} {words[2]} of {host} {boot_id[:8]}".rstrip()
        found.append(Mount(_plain(words[4]), own))
    return tuple(reversed(found))


def file_system_of(path: str, mounts: Sequence[Mount], directory: str = "/") -> Mount | None:
    """Return the mount that a path is on, the longest that fits; None if none does."""
    whole = os.path.normpath(os.path.join(directory, path))
    fitting = (
        mount
        for mount in mounts
        if whole == mount.point or whole.startswith(mount.point if mount.point.endswith("/") else f"{mount.point}/")
    )
    return max(fitting, key=lambda mount: len(mount.point), default=None)


def _plain(text: str) -> str:
    """Return a name of the mount table, in which blanks are octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


# Energy of the devices by kind of time. NVML's energy counter says how much there was, its power samples when: each
# sample counts for the kind of time that the rank's step thread was in at that moment. Kinds shorter than the distance
# of the samples are right on average only.

_ENERGY, _POWER = "gpu_energy_joules_total.", "gpu_power_watts."


def add_energy(out: RunRows, trace: Trace) -> None:
    """Append the energy of each rank's devices by kind of time; nothing where no device was sampled."""
    series = _series(trace)
    owners: dict[str, list[int]] = {}
    for device in trace.devices.rows():
        uuid = counted_gpu(trace, device)
        if device["rank"] >= 0 and device["rank"] not in owners.setdefault(uuid, []):
            owners[uuid].append(device["rank"])
    kinds = _kinds_by_rank(trace) if owners else {}
    totals: dict[tuple[int, str], float] = {}
    for uuid, ranks in owners.items():
        joules, moments, watts = _of_device(series, uuid)
        if joules <= 0:
            continue
        for rank in ranks:  # ranks that share a device share its energy
            for name, part in _shares(moments, watts, kinds.get(rank)).items():
                totals[rank, name] = totals.get((rank, name), 0.0) + joules * part / len(ranks)
    for (rank, name), joules in sorted(totals.items()):
        out.add("energy", kind=name, rank=rank, energy_mj=round(joules * 1e3))


def _series(trace: Trace) -> dict[str, tuple[Int64, np.ndarray]]:
    """Return moments and values of the counters of energy and power, by the name of their track."""
    names = {
        int(track): name
        for track, code in zip(trace.tracks["track_id"].tolist(), trace.tracks["name_code"].tolist(), strict=True)
        if (name := trace.text(code)).startswith((_ENERGY, _POWER))
    }
    counters = trace.counters
    found: dict[str, tuple[Int64, np.ndarray]] = {}
    for track, rows in GroupBy(counters["track_id"]).items():
        if track in names:
            rows = rows[np.argsort(counters["ts_ns"][rows], kind="stable")]
            found[names[track]] = counters["ts_ns"][rows], counters["value"][rows]
    return found


def _of_device(series: dict[str, tuple[Int64, np.ndarray]], uuid: str) -> tuple[float, Int64, np.ndarray]:
    """Return the energy of a device, and its samples of power; the energy is that of the power where nothing counts."""
    nothing = np.empty(0, dtype=np.int64), np.empty(0)
    moments, watts = series.get(_POWER + uuid, nothing)
    _, counted = series.get(_ENERGY + uuid, nothing)
    joules = float(counted[-1] - counted[0]) if len(counted) > 1 else 0.0
    if joules <= 0 and len(moments) > 1:
        joules = float((np.diff(moments) / 1e9 * (watts[1:] + watts[:-1]) / 2).sum())
    return joules, moments, watts


def _kinds_by_rank(trace: Trace) -> dict[int, tuple[Int64, Int64, Int64]]:
    """Return begin, end and kind of the intervals of each rank; those outside of steps have kind -1."""
    try:
        columns = coded_intervals(trace)
    except MissingDataError:
        return {}
    kind = np.where(columns["step"] >= 0, columns["kind"], -1)
    return {
        int(rank): (columns["begin_ns"][rows], columns["end_ns"][rows], kind[rows])
        for rank, rows in GroupBy(columns["rank"]).items()
    }


def _shares(moments: Int64, watts: np.ndarray, intervals: tuple[Int64, Int64, Int64] | None) -> dict[str, float]:
    """Return the part of the energy in each kind of time; all of it outside where nothing says when it was used."""
    if intervals is None or len(moments) < 2 or watts.sum() <= 0:
        return {OUTSIDE: 1.0}
    begin, end, kind = intervals
    weight = watts * np.gradient(moments.astype(np.float64))
    code = value_at(kind, window_at(moments, begin, end), -1)
    names = {int(one): name for one, name in zip(StallKind, KIND_NAMES, strict=True)} | {-1: OUTSIDE}
    whole = float(weight.sum())
    return {names[one]: float(weight[code == one].sum()) / whole for one in np.unique(code).tolist()}
