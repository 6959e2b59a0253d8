"""Device rows of a TraceBuilder: devices, streams, brackets, blocking calls, kernels. Import through `builders`.

    gpu = build.rank(0).gpu(0)
    compute = gpu.stream("compute", compute=True)
    side = gpu.stream("nccl")
    compute.step(0).batch_wait(2 * MS, 5 * MS, batch=0).step(50 * MS)
    side.copy(5 * MS, 6 * MS, size_bytes=1 << 20)
    compute.wait(5 * MS, 6 * MS, awaited=Awaited.COPY, awaited_ns=6 * MS)
    gpu.call(DeviceCall.STREAM_SYNCHRONIZE, 40 * MS, 49 * MS, stream=compute)
    compute.kernel(6 * MS, 20 * MS, "gemm")
    build.device_collective({0: (9 * MS, 10 * MS, 12 * MS, 30 * MS)}, streams={0: side}, bracket=True)

Host times default to the device's: a bracket whose `host=` is not given was recorded when it ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stashtrace.schema.kinds import (
    Awaited,
    Bracket,
    BracketFlag,
    CopyDirection,
    DeviceCall,
    DeviceClock,
    DeviceWork,
    StreamFlag,
    TrackKind,
)

if TYPE_CHECKING:
    from trace_rows import ProcessBuilder


class GpuBuilder:
    """One device of one process. Make it with ``ProcessBuilder.gpu``."""

    def __init__(self, process: ProcessBuilder, index: int, uuid: str, error_ns: int, drift_ppb: int) -> None:
        build, code = process.build, process.build.strings.code
        self.process, self.build, self.index = process, build, index
        self.track_id = build.track(process.process_id, index, f"GPU {index}", kind=TrackKind.DEVICE)
        self._streams: dict[str, StreamBuilder] = {}
        build.add(
            "devices",
            process_id=process.process_id,
            rank=process.rank,
            device_index=index,
            track_id=self.track_id,
            uuid_code=code(uuid or f"GPU-{build.host(max(process.rank, 0))}-{max(process.rank, 0)}-{index}"),
            name_code=code("Test GPU"),
            bus_code=code(f"0000:{index:02x}:00.0"),
            memory_bytes=80 << 30,
            multiprocessors_count=132,
            capability_code=90,
            driver_code=13000,
        )
        for clock in (DeviceClock.EVENT, DeviceClock.GLOBALTIMER):
            build.add(
                "device_clocks",
                process_id=process.process_id,
                device_index=index,
                clock_code=int(clock),
                anchors_count=4,
                error_ns=error_ns,
                drift_ppb=drift_ppb,
            )

    def stream(
        self, name: str, *, compute: bool = False, flags: StreamFlag = StreamFlag.NON_BLOCKING, priority: int = 0
    ) -> StreamBuilder:
        """A stream, made at first use; ``compute`` says that the step thread's work goes there."""
        if name not in self._streams:
            self._streams[name] = StreamBuilder(self, name, int(flags) | (8 if compute else 0), priority)
        return self._streams[name]

    def call(
        self,
        kind: DeviceCall,
        begin_ns: int,
        end_ns: int,
        *,
        stream: StreamBuilder | None = None,
        size_bytes: int = 0,
        status: int = 0,
        track_id: int | None = None,
    ) -> GpuBuilder:
        """A blocking or allocating call of the process's thread."""
        self.build.add(
            "device_calls",
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.process.track_id if track_id is None else track_id,
            process_id=self.process.process_id,
            rank=self.process.rank,
            stream_track_id=-1 if stream is None else stream.track_id,
            device_index=self.index,
            call_code=int(kind),
            status_code=status,
            size_bytes=size_bytes,
        )
        return self


class StreamBuilder:
    """One stream; every method but :meth:`bracket` returns the builder, so calls chain."""

    def __init__(self, gpu: GpuBuilder, name: str, flags: int, priority: int) -> None:
        self.gpu, self.build, self.process = gpu, gpu.build, gpu.process
        key = 1 + sum(t["kind_code"] == TrackKind.STREAM for t in self.build.rows["tracks"])
        self.track_id = self.build.track(self.process.process_id, key, name, kind=TrackKind.STREAM)
        self.build.add(
            "streams",
            track_id=self.track_id,
            process_id=self.process.process_id,
            rank=self.process.rank,
            device_index=gpu.index,
            stream_flags=flags,
            priority_index=priority,
        )

    def bracket(
        self,
        kind: Bracket,
        begin_ns: int,
        end_ns: int,
        *,
        host: tuple[int, int] | None = None,
        awaited: Awaited = Awaited.NOTHING,
        awaited_ns: int = -1,
        flags: int = 0,
        copy: int = 0,
        size_bytes: int = 0,
        correlation: int = 0,
        track_id: int | None = None,
    ) -> int:
        """Append a bracket; its bracket_id. Times of -1 are untimed; ``host`` is (call, return)."""
        call, returned = host if host is not None else (begin_ns, end_ns)
        bracket_id = 1 + len(self.build.rows["device_brackets"])
        self.build.add(
            "device_brackets",
            bracket_id=bracket_id,
            process_id=self.process.process_id,
            rank=self.process.rank,
            device_index=self.gpu.index,
            track_id=self.track_id,
            thread_track_id=self.process.track_id if track_id is None else track_id,
            begin_ns=begin_ns,
            end_ns=end_ns,
            awaited_ns=awaited_ns,
            call_ns=call,
            return_ns=returned,
            bracket_code=int(kind),
            awaited_code=int(awaited),
            bracket_flags=int(flags) | (int(BracketFlag.UNTIMED) if begin_ns < 0 else 0),
            copy_code=int(copy),
            size_bytes=size_bytes,
            correlation_id=correlation,
        )
        return bracket_id

    def step(self, at_ns: int, number: int | None = None, *, host_ns: int | None = None) -> StreamBuilder:
        """A step ends here; numbered from 0 within the process."""
        if number is None:
            number = sum(
                row["bracket_code"] == Bracket.STEP and row["process_id"] == self.process.process_id
                for row in self.build.rows["device_brackets"]
            )
        host = at_ns if host_ns is None else host_ns
        self.bracket(Bracket.STEP, at_ns, at_ns, host=(host, host), correlation=number)
        return self

    def mark(self, at_ns: int, *, host_ns: int) -> StreamBuilder:
        """How far the host leads: recorded at host_ns, reached at at_ns."""
        self.bracket(Bracket.MARK, at_ns, at_ns, host=(host_ns, host_ns))
        return self

    def batch_wait(
        self, begin_ns: int, end_ns: int, *, batch: int = 0, host: tuple[int, int] | None = None
    ) -> StreamBuilder:
        """Events around the loader's next(); ``host`` is (next entered, next returned)."""
        self.bracket(Bracket.BATCH_WAIT, begin_ns, end_ns, host=host, correlation=batch)
        return self

    def wait(
        self,
        begin_ns: int,
        end_ns: int,
        *,
        awaited: Awaited = Awaited.NOTHING,
        awaited_ns: int = -1,
        awaited_id: int = 0,
        host: tuple[int, int] | None = None,
        copy: int = 0,
    ) -> StreamBuilder:
        """Events around cudaStreamWaitEvent on this stream; ``awaited_id`` is the bracket of the awaited work."""
        self.bracket(
            Bracket.STREAM_WAIT,
            begin_ns,
            end_ns,
            host=host,
            awaited=awaited,
            awaited_ns=awaited_ns,
            correlation=awaited_id,
            copy=copy,
        )
        return self

    def copy(
        self,
        begin_ns: int,
        end_ns: int,
        *,
        size_bytes: int = 1 << 20,
        direction: CopyDirection = CopyDirection.HOST_TO_DEVICE,
        pinned: bool = True,
        host: tuple[int, int] | None = None,
    ) -> StreamBuilder:
        """Events around an asynchronous copy."""
        flags = BracketFlag.PINNED if pinned else BracketFlag.PAGEABLE
        self.bracket(Bracket.COPY, begin_ns, end_ns, host=host, flags=flags, copy=direction, size_bytes=size_bytes)
        return self

    def graph(
        self, begin_ns: int, end_ns: int, *, handle: int = 0x600D, host: tuple[int, int] | None = None
    ) -> StreamBuilder:
        """Events around a graph launch."""
        self.bracket(Bracket.GRAPH, begin_ns, end_ns, host=host, correlation=handle)
        return self

    def kernel(
        self,
        begin_ns: int,
        end_ns: int,
        name: str = "kernel",
        *,
        work: DeviceWork = DeviceWork.KERNEL,
        launch: tuple[int, int] | None = None,
        copy: int = 0,
        size_bytes: int = 0,
        correlation: int = 0,
        graph_key: int = 0,
    ) -> StreamBuilder:
        """Work on the device as deep mode sees it; ``launch`` is the launching call, unknown if not given."""
        called, returned = launch or (-1, -1)
        self.build.add(
            "kernels",
            begin_ns=begin_ns,
            end_ns=end_ns,
            process_id=self.process.process_id,
            rank=self.process.rank,
            device_index=self.gpu.index,
            track_id=self.track_id,
            thread_track_id=self.process.track_id if launch else -1,
            launch_ns=called,
            return_ns=returned,
            name_code=self.build.strings.code(name),
            work_code=int(work),
            copy_code=int(copy),
            size_bytes=size_bytes,
            correlation_id=correlation or 1 + len(self.build.rows["kernels"]),
            graph_key=graph_key,
        )
        return self
