"""Measure what the links of this machine can do: plan, run the workers, fit, return a ``Calibration``.

Nothing heavy is imported here. Workers are processes of one host, one per rank, which meet through a file: a driver
that crashes takes one of them and not the answer. A worker that fails takes the others with it, and its last line
becomes the error.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.calibration.file import Calibration, Link, Points
from stashtrace.calibration.fit_link import Fit, Piece, fit_alpha_beta
from stashtrace.calibration.robust_line import Floats, robust_line
from stashtrace.errors import CaptureError, MissingDataError, UsageError
from stashtrace.files.whole_files import write_whole
from stashtrace.lab.calibrate.calibrate_worker import sizes_between
from stashtrace.lab.machine import Meanwhile, free_memory_bytes, machine_facts, meanwhile_text, measured_quietly
from stashtrace.lab.processes import (
    ProgressCallback,
    RankFailedError,
    last_line,
    no_progress,
    rank_processes,
    wait_for_ranks,
)
from stashtrace.record.environment import untraced_environment

_WORKER = "stashtrace.lab.calibrate.calibrate_worker"
#: Importing torch, meeting, allocating and the last round, on a busy machine.
_SLACK_S = 180.0
_PROBE_S = 120.0


def probe_machine() -> dict[str, Any]:
    """Run ``calibrate_worker.probe`` in a separate process: the caller never imports torch."""
    return run_ranks({"what": "probe"}, 1, _PROBE_S)[0]


def run_ranks(
    task: Mapping[str, Any], ranks: int, seconds: float, *, on_wait: Callable[[float], None] = lambda seconds: None
) -> list[dict[str, Any]]:
    """Run workers with the same task, and return their answers.

    ``task``: as ``calibrate_worker`` reads it; rank, number of ranks and paths are added. ``ranks``: how many
    processes. ``seconds``: how long they mean to measure; they are stopped three minutes after that. ``on_wait``:
    called with the seconds since the start, now and then. Raises CaptureError if a worker fails or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="stashtrace-calibrate-") as name:
        folder = Path(name)
        tasks, logs, answers = (
            [folder / f"{kind}{rank}" for rank in range(ranks)] for kind in ("task", "printed", "answer")
        )
        for rank, (path, answer) in enumerate(zip(tasks, answers, strict=True)):
            place = {"rank": rank, "ranks": ranks, "rendezvous": str(folder / "meet"), "answer": str(answer)}
            write_whole(path, json.dumps({**task, **place}))
        begin, limit_s = time.monotonic(), seconds + _SLACK_S

        def watch(running: Sequence[int]) -> None:
            waited_s = time.monotonic() - begin
            if waited_s > limit_s:
                stuck = ", ".join(map(str, running))
                raise CaptureError(f"workers {stuck} of {ranks} did not end within {limit_s:.0f} s")
            on_wait(waited_s)

        with rank_processes(_WORKER, tasks, logs, untraced(os.environ)) as workers:
            try:
                wait_for_ranks(workers, on_wait=watch)
            except RankFailedError as error:
                why = f"signal {-error.code}" if error.code < 0 else f"exit code {error.code}"
                said = last_line(logs[error.rank]) or "it said nothing"
                raise CaptureError(
                    f"worker {error.rank} of {ranks} failed ({why}): {said}",
                    hint="`stashtrace doctor` says what this machine has; `--ranks` and `--sizes` make it smaller",
                ) from error
        return [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]


def untraced(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove what makes the tracer record from an environment; one thread per rank, as launchers set it."""
    return {"OMP_NUM_THREADS": "1", **untraced_environment(environment)}


BACKENDS = ("auto", "gloo", "nccl", "cuda", "disk")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
COPIES = ("h2d_pinned", "h2d_pageable", "d2h_pinned", "d2h_pageable", "d2d")
READS = ("random_read", "sequential_read")
#: Sizes by default, smallest and largest.
SIZES = {
    "gloo": (1 << 10, 32 << 20),
    "nccl": (1 << 10, 256 << 20),
    "cuda": (1 << 10, 256 << 20),
    "posix": (4 << 10, 8 << 20),
}
#: Part of the free memory that all buffers together may take.
_MEMORY_RATIO = 0.5
_DEFAULT_RANKS = 2
#: The workers are started this often: what differs from start to start (placement, addresses) belongs to the error.
LAUNCHES = 3

Runner = Callable[..., list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """A calibration that was asked for."""

    #: One of :data:`BACKENDS`; ``auto`` takes what the machine has.
    backend: str = "auto"
    #: Ranks of collectives: 2 over gloo, one per device over NCCL if left out.
    ranks: int | None = None
    #: Smallest and largest message.
    sizes_bytes: tuple[int, int] | None = None
    #: Measuring time of everything together; starting processes comes on top.
    seconds: float = 30.0
    #: Folder whose disk is measured too.
    disk: str | None = None
    #: How often the workers are started.
    launches: int = LAUNCHES


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """What one group of workers measures, and for how long each time."""

    kind: str
    backend: str
    library: str
    ops: tuple[str, ...]
    ranks: int
    sizes_bytes: tuple[int, ...]
    seconds: float
    disk: str = ""

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.backend}, {self.ranks} ranks" if self.ranks > 1 else self.backend

    def task(self) -> dict[str, Any]:
        """The task as ``calibrate_worker`` reads it."""
        return {"what": "measure", **asdict(self)}


def plan(request: CalibrationRequest, facts: Mapping[str, Any], free_bytes: int) -> tuple[LinkPlan, ...]:
    """Plan what will be measured on a machine of which ``facts`` are known (see ``calibrate_worker.probe``).

    Raises UsageError if what was asked for cannot be measured here; the hint says what is missing.
    """
    devices, usable = len(facts.get("devices", ())), tuple(facts.get("backends", ()))
    hosts = tuple(facts.get("host_backends", usable))
    backends = _chosen(request, facts, devices, usable, hosts)
    share = request.seconds / (len(backends) * request.launches)
    plans = []
    for backend in backends:
        kind = {"cuda": "copy", "posix": "disk"}.get(backend, "collective")
        ranks = 1
        if kind == "collective":
            ranks = request.ranks or (devices if backend == "nccl" else _DEFAULT_RANKS)
        if backend == "nccl" and ranks > devices:
            raise UsageError(f"{ranks} ranks need {ranks} GPUs, this machine has {devices}", hint="leave --ranks out")
        peers = tuple(f"p2p_0_{i}" for i in facts.get("peers", ()))
        ops = {"copy": COPIES + peers, "disk": READS}.get(kind, COLLECTIVES)
        room = min(facts.get("free_bytes") or [free_bytes]) if backend in ("nccl", "cuda") else free_bytes // ranks
        sizes = _sizes(request, backend, ranks, room, len(ops))
        library = str(facts.get("library", ""))
        plans.append(LinkPlan(kind, backend, library, ops, ranks, sizes, share, request.disk or ""))
    return tuple(plans)


def _chosen(
    request: CalibrationRequest, facts: Mapping[str, Any], devices: int, usable: Sequence[str], hosts: Sequence[str]
) -> list[str]:
    if request.ranks is not None and request.ranks < 2:
        raise UsageError(f"collectives need two ranks or more, not {request.ranks}", hint="--ranks 2 or more")
    if request.seconds <= 0 or request.launches < 1:
        raise UsageError("measuring takes time", hint="--seconds 30")
    wanted = request.backend
    library = facts.get("library") or "neither torch nor cupy"
    if wanted in ("nccl", "cuda") and not devices:
        why = facts.get("complaint") or f"{library} sees none"
        raise UsageError(f"--backend {wanted} needs a GPU: {why}", hint="`stashtrace calibrate --backend gloo`")
    if wanted == "nccl" and "nccl" not in usable:
        raise UsageError(f"{library} was built without NCCL", hint="`pip install torch`, a CUDA build")
    if wanted == "gloo" and "gloo" not in hosts:
        raise UsageError("gloo comes with torch, which cannot be imported here", hint="`pip install torch`")
    if wanted == "disk":
        if request.disk is None:
            raise UsageError("--backend disk does not say which disk", hint="--disk DIR names a folder on it")
        chosen = []
    elif wanted != "auto":
        chosen = [wanted]
    else:
        chosen = ["cuda"] if devices else []
        if devices >= 2 and "nccl" in usable:
            chosen.append("nccl")
        elif not devices and "gloo" in hosts:
            chosen.append("gloo")
    if request.disk is not None:
        chosen.append("posix")
    if not chosen:
        raise UsageError(
            "nothing to measure with: neither torch nor cupy can be imported here",
            hint="`pip install torch`, or `--disk DIR` for the disk alone",
        )
    return chosen


def _sizes(request: CalibrationRequest, backend: str, ranks: int, room_bytes: int, ops_count: int) -> tuple[int, ...]:
    low, high = request.sizes_bytes or SIZES[backend]
    if low < 1 or high < low:
        raise UsageError(f"--sizes {low}:{high} is not a range", hint="for example --sizes 1K:32M")
    # All sizes together are twice the largest; an all-gather's output is its input times the ranks.
    most = int(room_bytes * _MEMORY_RATIO / (2 * (2 * ops_count + (ranks if backend in ("gloo", "nccl") else 0))))
    if request.sizes_bytes and high > most:
        raise UsageError(
            f"messages of {high} bytes need more than half of the free memory", hint=f"--sizes {low}:{most} fits"
        )
    unit = 4 * ranks if backend in ("gloo", "nccl") else 1
    sizes = sizes_between(low, min(high, most), unit_bytes=unit)
    if len(sizes) < 3:
        raise UsageError(f"--sizes {low}:{high} holds {len(sizes)} sizes, a fit needs three", hint="--sizes 1K:32M")
    return tuple(sizes)


def calibrate(
    request: CalibrationRequest,
    *,
    version: str = "",
    command: str = "",
    facts: Mapping[str, Any] | None = None,
    runner: Runner = run_ranks,
    on_progress: ProgressCallback = no_progress,
) -> Calibration:
    """Measure and fit.

    ``version``, ``command``: of stashtrace, and what was typed. ``facts``: as ``calibrate_worker.probe`` finds them.
    Raises UsageError if what was asked for cannot be measured here. Raises CaptureError if a worker fails. Raises
    MissingDataError if nothing could be measured in the end.
    """
    machine_before = machine_facts()  # its load is that of the machine, not ours
    known = dict(facts) if facts is not None else probe_machine()
    plans = plan(request, known, free_memory_bytes())
    links: list[Link] = []
    left_out: dict[str, str] = {}
    others: dict[str, str] = {}
    for number, part in enumerate(plans):
        starts: list[dict[str, Points]] = []
        seen: list[Meanwhile] = []
        again: list[int] = []
        still: list[int] = []
        for launch in range(1, request.launches + 1):
            begun = number * request.launches + launch - 1, len(plans) * request.launches
            answers, *disturbed = _start(part, runner, on_progress, begun, f"start {launch} of {request.launches}")
            left_out |= {f"{part.backend} {op}": why for op, why in answers[0]["left_out"].items()}
            starts.append(_points(answers))
            seen += [used] if (used := _meanwhile(answers)) is not None else []
            for numbers, taken in zip((again, still), disturbed, strict=True):
                numbers += [launch] if taken else []
        if seen:
            others[part.name] = meanwhile_text(seen, again, still)
        for op in part.ops:
            launches = [points[op] for points in starts if op in points]
            if launches:
                links.append(Link(part.kind, part.backend, op, part.ranks, fit_launches(launches), pooled(launches)))
    if not links:
        op, why = next(iter(left_out.items()), ("", "no operation"))
        raise MissingDataError(f"nothing could be measured: {op}: {why}", hint="`stashtrace doctor`")
    machine = {**machine_before, "devices": list(known.get("devices", ()))}
    names = ("torch", "cupy", "cuda", "nccl")
    versions = {"stashtrace": version, "python": platform.python_version()}
    versions |= {name: str(known[name]) for name in names if known.get(name)}
    date = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0).isoformat()
    return Calibration(date, command, machine, versions, tuple(links), left_out=left_out, others=others)


def _start(
    part: LinkPlan, runner: Runner, on_progress: ProgressCallback, begun: tuple[int, int], which: str
) -> tuple[list[dict[str, Any]], str, str]:
    """Start the workers of a plan, and once more if other work disturbed them.

    ``begun``: starts that are done, of how many. Returns answers, and what disturbed the first and the last attempt.
    """
    what = f"{part.name}: {len(part.ops)} operations, {which}"

    def report(seconds: float) -> None:
        on_progress((begun[0] + min(seconds / part.seconds, 0.99)) / begun[1], what)

    def disturbance(answers: list[dict[str, Any]]) -> str:
        nonlocal what
        used = _meanwhile(answers)
        taken = used.disturbance(of_disk=part.kind == "disk") if used is not None else ""
        if taken:
            what = f"{part.name}: {which} again, since {taken}"
        return taken

    def start() -> list[dict[str, Any]]:
        return runner(part.task(), part.ranks, part.seconds, on_wait=report)

    return measured_quietly(start, disturbance)


def _meanwhile(answers: Sequence[Mapping[str, Any]]) -> Meanwhile | None:
    return Meanwhile.from_uses([answer.get("used") for answer in answers])


def _points(answers: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    first = answers[0]
    if any(set(a["stamps"]) != set(first["stamps"]) for a in answers):
        raise CaptureError("an operation failed on some ranks and worked on others", hint="try --sizes 1K:1M first")
    return {op: points_of(first["timing"], [a["stamps"][op] for a in answers]) for op in first["stamps"]}


# From the stamps of all ranks to one time per size. Pure.


def transfer_times(timing: str, stamps: Sequence[Any]) -> Floats:
    """Time of each repetition without the wait for the last rank, ns.

    ``timing``: ``host``: (begin, end) on one clock; the transfer of a rank is its end minus the last begin, as in the
    analysis ``collectives``, and the middle rank counts. ``device``: (0, duration) by each device; the rank that came
    last waited least, so the shortest counts. ``stamps``: one list of (begin_ns, end_ns) per rank, all of one length.
    """
    table = np.array(stamps, dtype=np.int64)
    if timing == "device":
        times: Floats = (table[:, :, 1] - table[:, :, 0]).min(axis=0).astype(np.float64)
    else:
        times = np.median(table[:, :, 1] - table[:, :, 0].max(axis=0), axis=0)
    return np.maximum(times, 1.0)


def points_of(timing: str, by_size: Sequence[Mapping[str, Any]]) -> Points:
    """Median and quartiles of every size; one mapping "size -> stamps" per rank.

    Raises CaptureError if the ranks did not measure the same.
    """
    sizes = sorted(int(s) for s in by_size[0])
    rows = []
    for size in sizes:
        stamps = [rank.get(str(size), []) for rank in by_size]
        if len({len(s) for s in stamps}) != 1 or not stamps[0]:
            raise CaptureError(f"the ranks did not measure the same number of messages of {size} bytes")
        times = transfer_times(timing, stamps)
        low, median, high = np.percentile(times, (25, 50, 75))
        rows.append((size, float(median), float(low), float(high), len(times)))
    return Points(*(tuple(column) for column in zip(*rows, strict=True)))


# Several starts of the same workers made one fit: what differs between starts belongs to the standard error.
#
# Within one start the repetitions agree better than two starts do: processes land on other cores, buffers at other
# addresses, sockets in another order. A standard error from the points alone would promise what the next run breaks.


def pooled(launches: Sequence[Points]) -> Points:
    """Pool the points of several starts: medians of their medians and quartiles; all repetitions."""
    middle, low, high = (
        tuple(np.median([getattr(points, name) for points in launches], axis=0).tolist())
        for name in ("median_ns", "low_ns", "high_ns")
    )
    repetitions = np.sum([points.repetitions_count for points in launches], axis=0).tolist()
    return Points(launches[0].sizes_bytes, middle, low, high, tuple(repetitions))


def fit_launches(launches: Sequence[Points]) -> Fit:
    """Fit the pooled points; each error is at least that of the mean of the starts.

    The pieces of the pooled fit are fitted to every start by itself. The standard error of the mean of their alphas
    (and betas), ``standard deviation / sqrt(starts)``, replaces that of the pooled fit where it is larger.
    """
    points = pooled(launches)
    fit = fit_alpha_beta(points.sizes_bytes, points.median_ns, points.errors_ns())
    if len(launches) < 2:
        return fit
    return Fit(tuple(_widen(piece, launches, number == 0) for number, piece in enumerate(fit.pieces)))


def _widen(piece: Piece, launches: Sequence[Points], first: bool) -> Piece:
    lines = []
    for points in launches:
        sizes = np.array(points.sizes_bytes, dtype=np.float64)
        own = (sizes >= piece.min_bytes) & (sizes <= piece.max_bytes)
        times = np.array(points.median_ns)[own]
        lines.append(robust_line(sizes[own], times, np.ones(len(times)), errors_known=False, from_zero=first))
    root = np.sqrt(len(lines))
    alpha = float(np.std([line.alpha_ns for line in lines], ddof=1) / root)
    beta = float(np.std([line.beta_ns_per_byte for line in lines], ddof=1) / root)
    return replace(
        piece,
        alpha_error_ns=max(piece.alpha_error_ns, alpha),
        beta_error_ns_per_byte=max(piece.beta_error_ns_per_byte, beta),
    )
