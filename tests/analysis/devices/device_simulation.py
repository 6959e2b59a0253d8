"""A training loop on virtual devices: streams are FIFOs in virtual time, and the truth is what the script made slower.

    job = Job(batch_ms=20)          one fault per job, everything else as in Job()
    trace = job.trace(kernels=True) the rows that timing events, and deep mode, would have recorded

Wall time with a fault minus wall time without it is what the fault cost, whatever an attribution says. Host and device
run as CUDA has them: a launch returns at once, an event is reached behind the work before it, a collective ends when
the last rank has entered and the bytes have moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builders import MS, US, TraceBuilder
from device_rows import StreamBuilder

from stashtrace.schema.kinds import (
    Awaited,
    Bracket,
    BracketFlag,
    CollectiveSource,
    CopyDirection,
    DeviceCall,
    DeviceWork,
)
from stashtrace.schema.trace import Trace

LAUNCH = 5 * US
KERNELS, BUCKETS = 20, 2


@dataclass(frozen=True)
class Job:
    """Two ranks; durations in ms. ``late_ms`` is more compute on rank 1, ``idle_us`` the host's time per launch."""

    steps: int = 8
    batch_ms: float = 0.2
    copy_ms: float = 1
    transfer_ms: float = 1
    late_ms: float = 0
    idle_us: float = 0
    sync_every: int = 0
    after_sync_ms: float = 0
    on_compute_stream: bool = False
    hosts: tuple[str, ...] = ("node00",)
    source: CollectiveSource = CollectiveSource.EVENTS

    def trace(self, *, kernels: bool = False, brackets: bool = True) -> Trace:
        build = TraceBuilder(self.hosts)
        ranks = [_Rank(build, number, self, kernels, brackets) for number in range(2)]
        loops = [rank.loop() for rank in ranks]
        for met in zip(*loops, strict=True):  # every loop stops where its next collective has entered
            end = max(enter for enter, _, _ in met) + int(self.transfer_ms * MS)
            times, streams = {}, {}
            for rank, (enter, call, before) in zip(ranks, met, strict=True):
                times[rank.number] = rank.joined(enter, call, before, end)
                streams[rank.number] = rank.talks
            build.device_collective(times, streams=streams, source=self.source, bracket=False, message_bytes=10_000_000)
        return build.trace()


class _Rank:
    def __init__(self, build: TraceBuilder, number: int, job: Job, kernels: bool, brackets: bool) -> None:
        self.number, self.job, self.kernels, self.brackets = number, job, kernels, brackets
        self.process = build.rank(number)
        gpu = self.process.gpu(0)
        self.compute = gpu.stream("compute", compute=True)
        self.copies = gpu.stream("copy")
        self.talks = self.compute if job.on_compute_stream else gpu.stream("nccl")
        self.host = 0
        self.ready = {s.track_id: 0 for s in (self.compute, self.copies, self.talks)}
        self.last_bracket = 0

    def reached(self, stream: StreamBuilder) -> int:
        """When the device reaches an event recorded now."""
        return max(self.ready[stream.track_id], self.host)

    def run(self, stream: StreamBuilder, length: int, work: DeviceWork = DeviceWork.KERNEL, copy: int = 0) -> None:
        begin = max(self.ready[stream.track_id], self.host + LAUNCH)
        if self.kernels:
            stream.kernel(begin, begin + length, work=work, copy=copy, launch=(self.host, self.host + LAUNCH))
        self.ready[stream.track_id] = begin + length
        self.host += LAUNCH

    def wait(self, stream: StreamBuilder, other: StreamBuilder, kind: Awaited) -> None:
        """cudaStreamWaitEvent for the work now on another stream, with events around it."""
        call, before, done = self.host, self.reached(stream), self.ready[other.track_id]
        self.ready[stream.track_id] = max(self.ready[stream.track_id], done)
        self.host += LAUNCH
        if self.brackets and kind != Awaited.NOTHING:
            stream.wait(
                before,
                self.reached(stream),
                awaited=kind,
                awaited_ns=done,
                awaited_id=self.last_bracket,
                host=(call, self.host),
            )

    def mark(self, number: int) -> None:
        self.compute.step(self.reached(self.compute), number, host_ns=self.host)

    def launch_kernel(self, length: int, at: int) -> None:
        self.run(self.compute, length)
        self.host += int(self.job.idle_us * US)
        if self.job.sync_every and at % self.job.sync_every == 0:
            call, self.host = self.host, max(self.host, self.ready[self.compute.track_id])
            self.compute.gpu.call(DeviceCall.STREAM_SYNCHRONIZE, call, self.host, stream=self.compute)
            self.host += int(self.job.after_sync_ms * MS)

    def loop(self) -> Iterator[tuple[int, int, int]]:
        """The training loop; yields (enter, call, before-event) where a collective is called."""
        job = self.job
        self.mark(0)
        for step in range(job.steps):
            call, before = self.host, self.reached(self.compute)
            self.host += int(job.batch_ms * MS)
            if self.brackets:
                self.compute.batch_wait(before, self.reached(self.compute), batch=step, host=(call, self.host))
            self.process.batch_wait(step, call, self.host, worker=0)
            self.process.worker(0).fetch(step, call, self.host)
            self._copy()
            begin, half = self.host, KERNELS // 2
            for at in range(half):
                self.launch_kernel(MS, at)
            self.process.phase("forward", begin, self.host)
            begin = self.host
            for at in range(half):
                extra = int(job.late_ms * MS / half) if self.number == 1 else 0
                self.launch_kernel(MS + extra, at + half)
                if (at + 1) % (half // BUCKETS) == 0:
                    yield self._collective()
            self.wait(self.compute, self.talks, Awaited.COLLECTIVE)
            self.process.phase("backward", begin, self.host)
            begin = self.host
            self.run(self.compute, MS)
            self.process.phase("optimizer", begin, self.host)
            self.mark(step + 1)

    def _copy(self) -> None:
        call, before = self.host, self.reached(self.copies)
        self.run(self.copies, int(self.job.copy_ms * MS), DeviceWork.COPY, int(CopyDirection.HOST_TO_DEVICE))
        self.last_bracket = self.copies.bracket(
            Bracket.COPY,
            before,
            self.reached(self.copies),
            host=(call, self.host),
            flags=BracketFlag.PINNED,
            copy=CopyDirection.HOST_TO_DEVICE,
            size_bytes=20_000_000,
        )
        self.wait(self.compute, self.copies, Awaited.COPY)

    def _collective(self) -> tuple[int, int, int]:
        if self.talks is not self.compute:
            self.wait(self.talks, self.compute, Awaited.NOTHING)
        call, before = self.host, self.reached(self.talks)
        return max(self.ready[self.talks.track_id], self.host + LAUNCH), call, before

    def joined(self, enter: int, call: int, before: int, end: int) -> tuple[int, int, int, int]:
        """All ranks have entered: the bracket, the kernel, and (call, return, device begin, device end)."""
        self.host += LAUNCH
        self.ready[self.talks.track_id] = end
        if self.brackets:
            self.last_bracket = self.talks.bracket(Bracket.COLLECTIVE, before, end, host=(call, self.host))
        if self.kernels:
            self.talks.kernel(enter, end, "ncclDevKernel", work=DeviceWork.COMMUNICATION, launch=(call, call + LAUNCH))
        begin = enter if self.job.source == CollectiveSource.PLUGIN else before
        return call, self.host, begin, end
