"""Foreign traces: what their raw files hold, by plain arithmetic of intervals, the standard library alone.

On a device the time of a step is divided as docs/concepts/stalls.md does: what computes, then communication that
no computing hides, then copies, then nothing. Of nothing, the part inside DataLoader spans is waiting for batches.
Where files of ranks are missing nobody can know who was late, so the split of communication is a range.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import importlib.util
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ground_truth import machine

import stashtrace
from sentences import record
from sentences.judgement import Expected
from sentences.truth import Amount, Interval, RankTruth, Truth, common, length, union, without

Windows = Mapping[int, Sequence[Interval]]


@dataclass(frozen=True)
class Foreign:
    """A trace, or a set of them; its files, and what finds the truth in them."""

    name: str
    title: str
    paths: tuple[Path, ...]
    truth: Callable[[tuple[Path, ...], Windows], Truth]
    expected: Expected = field(default_factory=Expected)


def of(folder: Path) -> list[Foreign]:
    """Every trace of the folder of real traces that has time in it; none where there is no such folder."""
    if not folder.is_dir():
        return []
    kineto, nsys, darshan = folder / "kineto", folder / "nsys", folder / "darshan"
    dlrm = kineto / "dlrm8_v100"
    found = [
        Foreign("dlrm8", "DLRM, 8 ranks, 1 step", tuple(sorted(dlrm.glob("rank*.json.gz"))), of_kineto),
        Foreign("dlrm8_rank1", "rank 1 of the 8 alone", (dlrm / "rank1.pt.trace.json.gz",), of_kineto),
        Foreign(
            "dlrm8_three",
            "ranks 1, 4 and 7 of the 8",
            tuple(dlrm / f"rank{r}.pt.trace.json.gz" for r in (1, 4, 7)),
            of_kineto,
        ),
        Foreign(
            "sampled_128", "ranks 0 and 1 of 128", tuple(sorted((kineto / "sampled_128").glob("*.json.gz"))), of_kineto
        ),
    ]
    for path in sorted((kineto / "one_rank_of_many").glob("*.json.gz")) + sorted(
        (kineto / "one_gpu").glob("*.json.gz")
    ):
        if not path.name.endswith("_et.json.gz"):
            name = path.name.split(".")[0]
            found.append(Foreign(name, f"{path.parent.name.replace('_', ' ')}", (path,), of_kineto))
    found += [Foreign(f"nsys_{p.stem}", "Nsight export", (p,), of_nsys) for p in sorted(nsys.glob("*.sqlite"))]
    dft = folder / "dftracer"
    found += [
        Foreign(
            "dlio_unet3d", "DLIO UNet3D on 8 processes by DFTracer", tuple(sorted(dft.glob("dlio*.pfw.gz"))), of_dlio
        ),
        Foreign("cm1", "8 processes of CM1 by DFTracer", tuple(sorted(dft.glob("cm1*.pfw.gz"))), without_steps),
    ]
    found += [
        Foreign(f"darshan_{p.stem}", "Darshan log", (p,), without_steps) for p in sorted(darshan.glob("*.darshan"))
    ]
    straggler = [folder / "straggler" / f"trace-{name}.parquet" for name in ("AR", "SE")]
    found += [Foreign(f"straggler_{p.stem[-2:]}", "Megatron job of ByteDance", (p,), of_straggler) for p in straggler]
    return [case for case in found if all(path.exists() for path in case.paths)]


def read(case: Foreign) -> record.Recorded:
    """What the summary says of it, and what is true. Raises machine.Missing if what reads its format is not there."""
    if case.paths[0].suffix == ".darshan" and importlib.util.find_spec("darshan") is None:
        raise machine.Missing("PyDarshan is not installed")
    trace = stashtrace.load([str(path) for path in case.paths] if len(case.paths) > 1 else str(case.paths[0]))
    return record.summed_up(trace, lambda windows: case.truth(case.paths, windows))


def without_steps(paths: tuple[Path, ...], windows: Windows) -> Truth:
    """Files alone: nobody trains."""
    return Truth({})


def _loaded(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


#: As the libraries name their kernels.
_COMMUNICATES = re.compile(r"nccl|rccl|all_?reduce_(bf|half|float)|cross_device_reduce|multimem_", re.IGNORECASE)
_LOADER = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__")


#: A device pauses for less than this between works that are queued.
_PAUSE_NS = 20_000
#: All ranks leave a collective together; on one host within this.
_TOGETHER_NS = 100_000


@dataclass
class _Device:
    """Intervals of one rank, ns of the file's clock."""

    rank: int
    world: int
    computes: list[Interval] = field(default_factory=list)
    sets: list[Interval] = field(default_factory=list)
    communicates: list[Interval] = field(default_factory=list)
    copies: list[Interval] = field(default_factory=list)
    loads: list[Interval] = field(default_factory=list)
    #: When the call that launched the work that begins at a moment had returned.
    launched: dict[int, int] = field(default_factory=dict)
    steps: list[Interval] = field(default_factory=list)


def of_kineto(paths: tuple[Path, ...], windows: Windows) -> Truth:
    """Truth of the recordings of torch.profiler of one job."""
    devices = [_kineto(_loaded(path)) for path in paths]
    if len(devices) == 1 and len(windows) == 1:  # a file that does not say which rank it is of
        devices[0].rank = next(iter(windows)) if devices[0].rank < 0 else devices[0].rank
    return _of_devices(devices, windows)


def _kineto(content: Mapping[str, Any]) -> _Device:
    about = content.get("distributedInfo") or {}
    base = int(content.get("baseTimeNanoseconds") or 0)
    device = _Device(int(about.get("rank", -1)), int(about.get("world_size", 1)))
    returned: dict[int, int] = {}
    begun: list[tuple[int, int]] = []
    for event in content["traceEvents"]:
        if event.get("ph") != "X":
            continue
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        begin = round(float(event["ts"]) * 1000) + base
        span = (begin, begin + round(float(event.get("dur") or 0) * 1000))
        number = int((event.get("args") or {}).get("correlation") or 0)
        if number and category in ("kernel", "gpu_memset", "memset", "gpu_memcpy", "memcpy"):
            begun.append((begin, number))
        elif number:
            returned[number] = span[1]
        if category == "kernel":
            (device.communicates if _COMMUNICATES.search(name) else device.computes).append(span)
        elif category in ("gpu_memset", "memset"):
            device.sets.append(span)
        elif category in ("gpu_memcpy", "memcpy"):
            (device.sets if "DtoD" in name or "Device -> Device" in name else device.copies).append(span)
        elif name.startswith("ProfilerStep#") and not category.startswith("gpu_"):
            device.steps.append(span)
        elif _LOADER.search(name):
            device.loads.append(span)
    device.launched = {begin: returned[number] for begin, number in begun if number in returned}
    return device


def of_nsys(paths: tuple[Path, ...], windows: Windows) -> Truth:
    """Truth of an export of Nsight Systems: a rank per device; a step ends with the last that its device did."""
    database = sqlite3.connect(f"file:{paths[0]}?mode=ro&immutable=1", uri=True)
    tables = {row[0] for row in database.execute("select name from sqlite_master where type = 'table'")}

    def rows(table: str, columns: str) -> list[Any]:
        full = f"CUPTI_ACTIVITY_KIND_{table}"
        return database.execute(f"select {columns} from {full}").fetchall() if full in tables else []

    names = dict(database.execute("select id, value from StringIds").fetchall())
    kernels, sets = rows("KERNEL", "deviceId, start, end, shortName"), rows("MEMSET", "deviceId, start, end")
    copies = rows("MEMCPY", "deviceId, start, end, copyKind")
    database.close()
    devices = []
    for rank, number in enumerate(sorted({row[0] for row in kernels + copies})):
        device = _Device(rank, 1)
        for owner, begin, end, name in kernels:
            if owner == number:
                moves = _COMMUNICATES.search(str(names.get(name, "")))
                (device.communicates if moves else device.computes).append((begin, end))
        device.sets = [(begin, end) for owner, begin, end in sets if owner == number]
        device.sets += [(begin, end) for owner, begin, end, kind in copies if owner == number and kind == 8]
        device.copies = [(begin, end) for owner, begin, end, kind in copies if owner == number and kind != 8]
        devices.append(device)
    shifted = {}
    for device in devices:
        own = windows.get(device.rank, ())
        if own:
            spans = device.computes + device.communicates + device.copies + device.sets
            by = max(end for _, end in spans) - max(end for _, end in own)
            shifted[device.rank] = [(begin + by, end + by) for begin, end in own]
    return _of_devices(devices, shifted)


def _of_devices(devices: Sequence[_Device], windows: Windows) -> Truth:
    world = max(max(device.world for device in devices), len(devices))
    present = {device.rank for device in devices}
    missing = tuple(r for r in range(world) if r not in present) if world > 1 else ()
    waits = _waits(devices)
    ranks = {
        device.rank: _device_rank(device, windows[device.rank], waits.get(device.rank, []), bool(missing))
        for device in devices
        if device.rank in windows
    }
    count = max(len(device.steps) for device in devices)
    # A device's steps are a little longer or shorter than those of its host.
    return Truth(ranks, len(devices), missing, steps={"marked": (count, 0.0)}, steps_known=count > 0)


def _waits(devices: Sequence[_Device]) -> dict[int, list[tuple[Interval, int]]]:
    """Rank -> intervals in which a communication kernel stood until the last rank's began, and that rank.

    The n-th kernel of each rank is the same operation where all have as many.
    """
    if len(devices) < 2 or len({len(device.communicates) for device in devices}) != 1:
        return {}
    found: dict[int, list[tuple[Interval, int]]] = {device.rank: [] for device in devices}
    for entries in zip(*(sorted(device.communicates) for device in devices), strict=True):
        last = max(range(len(devices)), key=lambda n: entries[n][0])
        arrived, ends = entries[last][0], [end for _, end in entries]
        if max(ends) - min(ends) > _TOGETHER_NS:
            continue  # messages between some of them: nobody need have waited for the last
        for device, (begin, end) in zip(devices, entries, strict=True):
            if arrived > begin:
                found[device.rank].append(((begin, min(arrived, end)), devices[last].rank))
    return found


def _device_rank(
    device: _Device, windows: Sequence[Interval], waits: Sequence[tuple[Interval, int]], missing: bool
) -> RankTruth:
    own, count = union(windows), len(windows)
    kernels = common(union(device.computes), own)
    computes = common(union(device.computes + device.sets), own)
    communicates = without(common(union(device.communicates), own), kernels)
    copies = without(without(common(union(device.copies), own), computes), communicates)
    idle = without(without(without(own, computes), communicates), copies)
    data = length(common(idle, union(device.loads)))
    rest = without(idle, union(device.loads))
    first = min(begin for begin, _ in device.computes + device.sets + device.communicates + device.copies)
    head = length(common(rest, [(own[0][0], first)])) / count if own and own[0][0] < first else 0.0
    waits_on = [(begin, end) for begin, end in idle if begin >= first and end - begin > _PAUSE_NS]
    ahead = length(common(rest, [s for s in waits_on if device.launched.get(s[1], s[1]) <= s[0]])) / count
    host = (length(idle) - data) / count - head
    late_ns: dict[int, float] = {}
    for span, rank in waits:
        late_ns[rank] = late_ns.get(rank, 0.0) + length(common([span], communicates)) / count
    exposed, late = length(communicates) / count, sum(late_ns.values())
    sets_ns = (length(computes) - length(kernels)) / count
    columns = {
        "compute": Amount(length(kernels) / count, length(computes) / count),
        # Of missing ranks nobody knows whether they took part, nor when they came.
        "late": Amount(late, exposed) if missing else Amount.of(late),
        "link": Amount(0.0, exposed - late) if missing else Amount.of(exposed - late),
        "copy": Amount.of(length(copies) / count),
        "data": Amount.of(data / count),
        # Without launches, nobody here knows whether the host was late.
        "host": Amount(host - ahead, host - ahead + sets_ns) if device.launched else Amount(0.0, host, rough=True),
        "other": Amount.of(head + ahead) if device.launched else Amount(head, head + host, rough=True),
    }
    return RankTruth(
        device.rank,
        count,
        length(own) / count,
        columns,
        None if missing else late_ns,
        blocked_ns=columns["other"].high_ns,
    )


def of_dlio(paths: tuple[Path, ...], windows: Windows) -> Truth:
    """Truth of DLIO under DFTracer: who does not compute, waits; of that, what lies in the data set is certain."""
    ranks, counts = {}, []
    for path in paths:
        rank = int(re.search(r"-(\d+)-of-", path.name)[1])  # type: ignore[index]
        spans: dict[str, list[Interval]] = {}
        for event in _lines(path):
            begin = int(event["ts"]) * 1000
            spans.setdefault(str(event["name"]), []).append((begin, begin + int(event.get("dur", 0)) * 1000))
        computes, loads = union(spans["TorchFramework.compute"]), union(spans["TorchDataset.__getitem__"])
        counts.append(len(spans["TorchFramework.compute"]))
        own, count = union(windows.get(rank, ())), len(windows.get(rank, ()))
        if count:
            rest = without(own, computes)
            data = Amount(length(common(rest, loads)) / count, length(rest) / count)
            compute = length(common(own, computes)) / count
            columns = {"data": data, "compute": Amount(compute, compute + data.high_ns - data.low_ns)}
            making = {"cpu": 0.0, "queue": 0.0, "waiting": length(common(own, loads)) / count}
            ranks[rank] = RankTruth(rank, count, length(own) / count, columns, {}, making=making)
    return Truth(ranks, len(paths), steps={"marked": (max(counts), 0.0)})


#: Operations that compute; of some it is not known whether they also wait.
_COMPUTES = ("backward-compute", "forward-compute")
_MIXED = ("optimizer", "optimizer-clip-main-grad", "gc")


def of_straggler(paths: tuple[Path, ...], windows: Windows) -> Truth:
    """Truth of a StragglerAnalysis trace: what computes is exact, what communicates a sum of waiting and moving."""
    import pyarrow.parquet

    columns = pyarrow.parquet.read_table(paths[0]).to_pydict()
    spans: dict[tuple[int, int], dict[str, list[Interval]]] = {}
    names = ("rank", "step", "optype", "start_ts", "duration")
    for rank, step, operation, start, duration in zip(*(columns[name] for name in names), strict=True):
        begin = round(start * 1e9)
        spans.setdefault((rank, step), {}).setdefault(operation, []).append((begin, begin + round(duration * 1e9)))
    ranks: dict[int, RankTruth] = {}
    for rank in sorted({rank for rank, _ in spans}):
        own = [by_name for (r, _), by_name in spans.items() if r == rank]
        parts = [_straggler_step(by_name) for by_name in own]
        wall, compute, mixed, moves = (sum(part[n] for part in parts) / len(parts) for n in range(4))
        ranks[rank] = RankTruth(
            rank,
            len(own),
            wall,
            {
                "compute": Amount(compute, compute + mixed, rough=True),
                "late": Amount(0.0, moves + mixed, rough=True),
                "link": Amount(0.0, moves + mixed, rough=True),
                "other": Amount.of(wall - compute - mixed - moves),
            },
            blocked_ns=wall - compute - mixed - moves,
        )
    count = len({step for _, step in spans})
    about = paths[0].with_name(paths[0].name.replace("trace-", "meta-")).with_suffix(".yaml").read_text()
    world = int(re.search(r"world_size: (\d+)", about)[1])  # type: ignore[index]
    missing = tuple(rank for rank in range(world) if rank not in ranks)
    return Truth(ranks, len(ranks), missing, steps={"marked": (count, 0.0)})


def _straggler_step(by_name: Mapping[str, list[Interval]]) -> tuple[int, int, int, int]:
    """Lengths of one step of a rank: all, computing, of mixed nature, communicating while nothing computes."""
    every = [span for spans in by_name.values() for span in spans]
    computes = union([span for name in _COMPUTES for span in by_name.get(name, ())])
    mixed = without(union([span for name in _MIXED for span in by_name.get(name, ())]), computes)
    rest = without(without(union(every), computes), mixed)
    wall = max(end for _, end in every) - min(begin for begin, _ in every)
    return wall, length(computes), length(mixed), length(rest)


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for text in file:
            text = text.strip().rstrip(",")
            if text.startswith("{"):
                event = json.loads(text)
                if "dur" in event:
                    yield event
