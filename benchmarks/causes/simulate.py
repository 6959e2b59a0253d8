"""Make traces of torch.profiler of jobs that were never run: ranks with a GPU, by a small simulation.

Each rank has a host, which launches one thing after the other, and a device, which does them in that order. A
collective ends when all have entered it and its bytes have moved; a receive when its send has. A send leaves its bytes
and returns. Times are ms; a trace is one JSON file per rank, as ``export_chrome_trace`` writes it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

LAUNCH_MS, LATENCY_MS, GAP_MS = 0.008, 0.006, 0.001
KERNELS_OF_A_PIECE = 4
#: Steps that a summary leaves out at the head of a run of more than ten.
WARMUP_STEPS = 5
COMPUTE_STREAM, TALK_STREAM, HOST_PID, HOST_TID, DEVICE_PID = 7, 30, 4000, 4000, 0
_KERNELS = {
    "forward": "ampere_sgemm_128x64_tn",
    "backward": "ampere_sgemm_128x64_nt",
    "experts": "moe_grouped_gemm_kernel",
    "update": "multi_tensor_apply_kernel<FusedAdam>",
}
_NCCL = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


@dataclass(frozen=True)
class Work:
    """A thing that a rank does: ``kind`` is "step", "compute", "host", "sync", "copy" or the name of a collective.

    For "host" the name is that of an annotation, "" for Python that nothing shows; for "sync" that of the call.
    """

    kind: str
    name: str = ""
    milliseconds: float = 0.0
    group: tuple[int, ...] = ()
    peer: int = -1
    elements: int = 1 << 20


def compute(milliseconds: float, name: str = "forward") -> Work:
    """Compute on the device."""
    return Work("compute", name, milliseconds)


def host(milliseconds: float, name: str = "") -> Work:
    """Keep the host busy."""
    return Work("host", name, milliseconds)


def collective(kind: str, group: Sequence[int], milliseconds: float) -> Work:
    """Call a collective."""
    return Work(kind, "", milliseconds, tuple(group))


def send(rank: int, peer: int, milliseconds: float = 0.2) -> Work:
    """Send to another rank."""
    return Work("send", "", milliseconds, (min(rank, peer), max(rank, peer)), peer)


def receive(rank: int, peer: int, milliseconds: float = 0.2) -> Work:
    """Receive from another rank."""
    return Work("recv", "", milliseconds, (min(rank, peer), max(rank, peer)), peer)


SYNC = Work("sync", "cudaStreamSynchronize")


@dataclass
class _Rank:
    """A rank while it is simulated."""

    number: int
    work: Sequence[Work]
    place: int = 0
    host_ms: float = 0.0
    device_ms: float = 0.0
    step: int = -1
    step_begin_ms: float = 0.0
    entered: bool = False
    launched: tuple[float, int] = (0.0, 0)
    events: list[dict[str, Any]] = field(default_factory=list)
    waits: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    computed: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    lengths: list[float] = field(default_factory=list)
    sequences: dict[tuple[int | str, ...], int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True)
class Simulated:
    """Events of each rank; means over the counted steps: of a step, and per rank of its waits and its computing."""

    events: dict[int, list[dict[str, Any]]]
    step_ms: float
    waits_ms: dict[int, float]
    computed_ms: dict[int, float]


class _Simulation:
    """The ranks, and who has entered which collective."""

    def __init__(self, programs: Sequence[Sequence[Work]]) -> None:
        self.ranks = [_Rank(number, work) for number, work in enumerate(programs)]
        self.entries: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
        self.correlation = 0

    def run(self) -> None:
        """Advance each rank as far as it comes until all are done."""
        while True:
            advanced = [self.advance(rank) for rank in self.ranks]
            if all(rank.place == len(rank.work) for rank in self.ranks):
                break
            if not any(advanced):
                raise RuntimeError("the made-up job waits for itself")
        for rank in self.ranks:
            self.end_step(rank)

    def advance(self, rank: _Rank) -> bool:
        """Do the work of a rank until it has to wait for another; return whether it did anything."""
        begin = rank.place
        while rank.place < len(rank.work):
            work = rank.work[rank.place]
            if work.group:
                if not self.communicate(rank, work):
                    break
            else:
                getattr(self, f"do_{work.kind}")(rank, work)
            rank.place += 1
        return rank.place > begin

    def do_step(self, rank: _Rank, work: Work) -> None:
        """Begin the next step."""
        self.end_step(rank)
        rank.step += 1
        rank.step_begin_ms = rank.host_ms

    def end_step(self, rank: _Rank) -> None:
        """Annotate the step that ends."""
        if rank.step >= 0:
            self.add(rank, "user_annotation", f"ProfilerStep#{rank.step}", rank.step_begin_ms, rank.host_ms)
            rank.lengths.append(rank.host_ms - rank.step_begin_ms)

    def do_compute(self, rank: _Rank, work: Work) -> None:
        """Launch some kernels that take this long together."""
        rank.computed[rank.step] += work.milliseconds
        begin = rank.host_ms
        for _ in range(KERNELS_OF_A_PIECE):
            enter = self.launch(rank)
            end = enter + work.milliseconds / KERNELS_OF_A_PIECE
            self.kernel(rank, _KERNELS.get(work.name, "gemm_kernel"), enter, end, COMPUTE_STREAM, {})
        self.add(rank, "cpu_op", f"aten::{'mm' if work.name != 'update' else '_fused_adam_'}", begin, rank.host_ms)
        if work.name == "update":
            self.add(rank, "user_annotation", "Optimizer.step#Adam.step", begin, rank.host_ms)

    def do_host(self, rank: _Rank, work: Work) -> None:
        """Let the host do something else."""
        begin = rank.host_ms
        rank.host_ms += work.milliseconds
        if work.name:
            self.add(rank, "user_annotation", work.name, begin, rank.host_ms)

    def do_sync(self, rank: _Rank, work: Work) -> None:
        """Let the host wait for its device."""
        begin = rank.host_ms
        rank.host_ms = max(begin, rank.device_ms) + 0.005
        self.add(rank, "cuda_runtime", work.name, begin, rank.host_ms, correlation=self.next_correlation())

    def do_copy(self, rank: _Rank, work: Work) -> None:
        """Copy from pageable memory: the call returns when the copy is done."""
        begin, number = rank.host_ms, self.next_correlation()
        enter = max(begin, rank.device_ms) + LATENCY_MS
        rank.launched = (begin, number)
        self.kernel(rank, "Memcpy HtoD (Pageable -> Device)", enter, enter + work.milliseconds, COMPUTE_STREAM, {})
        rank.events[-1]["cat"] = "gpu_memcpy"
        rank.events[-1]["args"]["bytes"] = int(work.milliseconds * 6e6)
        rank.host_ms = rank.device_ms + 0.005
        self.add(rank, "cuda_runtime", "cudaMemcpyAsync", begin, rank.host_ms, correlation=number)

    def communicate(self, rank: _Rank, work: Work) -> bool:
        """Enter a collective; return whether all that it needs have entered."""
        # Of two ranks, the n-th receive of one belongs to the n-th send of the other.
        ends = (rank.number, work.peer) if work.kind == "send" else (work.peer, rank.number)
        counted = work.group if work.peer < 0 else (*work.group, "p2p", *ends)
        entries = self.entries[counted, work.kind if work.peer < 0 else "p2p", rank.sequences[counted]]
        if not rank.entered:
            entries[rank.number] = self.launch(rank, talks=True)
            rank.entered = True
        enter = entries[rank.number]
        needed = (work.peer,) if work.kind == "recv" else () if work.kind == "send" else work.group
        if any(member not in entries for member in needed):
            return False
        ready = max((entries[member] for member in needed), default=enter)
        rank.waits[rank.step] += max(ready - enter, 0.0)
        rank.entered = False
        rank.sequences[counted] += 1
        if work.peer >= 0:  # NCCL numbers all operations of a rank in a group
            rank.sequences[work.group] += 1
        self.kernel(
            rank,
            _NCCL[work.kind],
            enter,
            max(ready, enter) + work.milliseconds,
            TALK_STREAM,
            self.described(rank, work),
        )
        return True

    def described(self, rank: _Rank, work: Work) -> dict[str, Any]:
        """Return the arguments that torch gives to a kernel of NCCL."""
        arguments: dict[str, Any] = {
            "Collective name": work.kind,
            "In msg nelems": work.elements,
            "Out msg nelems": work.elements,
            "Group size": len(work.group),
            "dtype": "Float",
            "Process Group Name": "_".join(map(str, work.group)),
            "Process Group Description": "default_pg" if len(work.group) == len(self.ranks) else "undefined",
            "Process Group Ranks": str(list(work.group)),
            "Seq": rank.sequences[work.group],
        }
        if work.peer >= 0:  # of the group, as torch writes it
            arguments["Dst Rank" if work.kind == "send" else "Src Rank"] = work.group.index(work.peer)
        return arguments

    def launch(self, rank: _Rank, talks: bool = False) -> float:
        """Launch something; return when the device can begin it."""
        begin, number = rank.host_ms, self.next_correlation()
        rank.host_ms += LAUNCH_MS
        rank.launched = (begin, number)
        name = "cudaLaunchKernelExC" if talks else "cudaLaunchKernel"
        self.add(rank, "cuda_runtime", name, begin, rank.host_ms, correlation=number)
        return max(rank.device_ms + GAP_MS, begin + LATENCY_MS)

    def kernel(self, rank: _Rank, name: str, begin: float, end: float, stream: int, arguments: dict[str, Any]) -> None:
        """Add work of the device."""
        given = {"device": 0, "context": 1, "stream": stream, "correlation": rank.launched[1], **arguments}
        rank.device_ms = max(rank.device_ms, end)
        rank.events.append(_event("kernel", name, DEVICE_PID, stream, begin, end, given))

    def add(self, rank: _Rank, category: str, name: str, begin: float, end: float, **arguments: int) -> None:
        """Add an event of the host."""
        rank.events.append(_event(category, name, HOST_PID, HOST_TID, begin, end, dict(arguments)))

    def next_correlation(self) -> int:
        """Return a new number of a launch."""
        self.correlation += 1
        return self.correlation


def _event(
    category: str, name: str, process: int, thread: int, begin: float, end: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": round(begin * 1e3, 3), "dur": round((end - begin) * 1e3, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times, "args": arguments}


def simulate(programs: Sequence[Sequence[Work]]) -> Simulated:
    """Simulate a job, one program per rank."""
    simulation = _Simulation(programs)
    simulation.run()
    ranks = simulation.ranks
    counted = range(WARMUP_STEPS, len(ranks[0].lengths))
    return Simulated(
        events={rank.number: rank.events for rank in ranks},
        step_ms=fmean(rank.lengths[step] for rank in ranks for step in counted),
        waits_ms={rank.number: fmean(rank.waits[step] for step in counted) for rank in ranks},
        computed_ms={rank.number: fmean(rank.computed[step] for step in counted) for rank in ranks},
    )


def write_traces(
    simulated: Simulated, folder: Path, begin_ms: float = 0.0, cut: dict[int, float] | None = None
) -> None:
    """Write a file per rank: without what began before ``begin_ms``, and cut after a part of its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    count = len(simulated.events)
    for rank, events in simulated.events.items():
        content = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84929347584}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": count, "nccl_version": "2.21.5"},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": sorted((e for e in events if e["ts"] >= begin_ms * 1e3), key=lambda e: float(e["ts"])),
        }
        text = json.dumps(content)
        text = text[: int(len(text) * (cut or {}).get(rank, 1.0))]
        (folder / f"trace_rank{rank}.json").write_text(text, encoding="utf-8")
