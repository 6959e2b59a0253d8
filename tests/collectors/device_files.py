"""Files of processes with devices, for tests of the decoders: clocks with drift, streams, brackets, NCCL calls.

Times in ms since the start, on the host's clock; rows hold what the device's clocks showed then. Each rank is a
separate process with one device; ranks of one host may share it (same uuid).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from stash_files import START_NS, StashWriter, ms

from stashtrace.schema.kinds import Bracket, CollectiveOp, CommEvent, DeviceClock

COMM = 0xC0FFEE
OFFSET_NS = {DeviceClock.EVENT: 0, DeviceClock.GLOBALTIMER: 1_700_000_000_000_000_000, DeviceClock.CUPTI: 77_000_000}
DRIFT_PPB = {DeviceClock.EVENT: 30_000, DeviceClock.GLOBALTIMER: -5_000, DeviceClock.CUPTI: 12_000}


def shown(clock: DeviceClock, at: float) -> int:
    """What a clock of the device shows at a moment; -1 stays (untimed)."""
    if at < 0:
        return -1
    since = ms(at) - START_NS
    return OFFSET_NS[clock] + since + since * DRIFT_PPB[clock] // 10**9


class RankFile:
    """One rank's file. Rows are added in any order; :meth:`save` writes it."""

    def __init__(
        self, directory: Path, rank: int, world: int, *, uuid: str = "", clocks: bool = True, **options: Any
    ) -> None:
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        self.stash = StashWriter(directory, pid=1000 + rank, env=env, **options)
        self.rank, self.world = rank, world
        self.tid = 1000 + rank
        self.ids = itertools.count(1)
        self.sequences: dict[int, int] = {}
        self.stash.sync(*range(0, 20_000, 1000))
        intern = self.stash.intern
        self.add(
            "device_info",
            ticks=ms(0),
            memory_bytes=80 << 30,
            uuid_id=intern(uuid or f"GPU-{rank}"),
            name_id=intern("Test GPU"),
            bus_id=intern("0000:01:00.0"),
            device_index=0,
            multiprocessors_count=132,
            capability_code=90,
            driver_code=13000,
        )
        for at in range(0, 20_000, 2000) if clocks else ():
            for clock in DeviceClock:
                self.add(
                    "device_clock",
                    before_ticks=ms(at) - 1000,
                    after_ticks=ms(at) + 1000,
                    device_ns=shown(clock, at),
                    device_index=0,
                    clock_code=int(clock),
                )

    def add(self, record: str, **fields: Any) -> None:
        """One row, written by this rank's main thread."""
        self.stash.add(record, [self.stash.row(record, **fields)], tid=fields.pop("_tid", self.tid))

    def stream(self, key: int, *, flags: int = 4, priority: int = 0, name: str = "") -> int:
        """Describe a stream; its key."""
        self.add(
            "stream_info",
            ticks=ms(0),
            stream_key=key,
            handle_key=0x1000 + key,
            device_index=0,
            priority_index=priority,
            stream_flags=flags,
            name_id=self.stash.intern(name) if name else 0,
        )
        return key

    def bracket(
        self,
        kind: Bracket,
        begin: float,
        end: float,
        *,
        stream: int = 1,
        host: tuple[float, float] = (1, 2),
        correlation: int = 0,
        awaited: float = -1,
        tid: int | None = None,
        **fields: Any,
    ) -> int:
        """A bracket by the event clock; its id."""
        number = next(self.ids)
        self.add(
            "device_bracket",
            call_ticks=ms(host[0]),
            return_ticks=ms(host[1]),
            begin_device_ns=shown(DeviceClock.EVENT, begin),
            end_device_ns=shown(DeviceClock.EVENT, end),
            awaited_device_ns=shown(DeviceClock.EVENT, awaited),
            stream_key=stream,
            correlation_id=correlation,
            bracket_id=number,
            tid=self.tid if tid is None else tid,
            device_index=0,
            bracket_code=int(kind),
            **fields,
        )
        return number

    def comm(self, value: int = COMM, *, rank: int | None = None, size: int | None = None, nodes: int = 1) -> None:
        """A communicator began."""
        self.add(
            "nccl_comm",
            begin_ticks=ms(1),
            end_ticks=ms(2),
            group_hash=value,
            comm_key=value,
            group_rank=self.rank if rank is None else rank,
            group_size=self.world if size is None else size,
            nodes_count=nodes,
            device_index=0,
            event_code=int(CommEvent.INIT),
            source_code=1,
        )

    def call(
        self,
        begin: float,
        returned: float,
        *,
        op: CollectiveOp = CollectiveOp.ALL_REDUCE,
        value: int = COMM,
        stream: int = 2,
        batch: int = 0,
        peer: int = -1,
        flags: int = 0,
        status: int = 0,
        source: int = 1,
        size: int = 1 << 20,
    ) -> int:
        """An NCCL call; its call_id."""
        number = next(self.ids)
        sequence = self.sequences.get(value, 0)
        self.sequences[value] = sequence + 1
        self.add(
            "nccl_call",
            call_ticks=ms(begin),
            return_ticks=ms(returned),
            group_hash=value,
            sequence=sequence,
            message_bytes=size,
            stream_key=stream,
            call_id=number,
            batch_id=batch,
            tid=self.tid,
            peer_rank=peer,
            op_code=int(op),
            nccl_flags=flags,
            source_code=source,
            status_code=status,
        )
        return number

    def task(
        self,
        call: int,
        begin: float,
        end: float,
        *,
        enqueued: float = 0,
        op: CollectiveOp = CollectiveOp.ALL_REDUCE,
        value: int = COMM,
        channels: int = 2,
        flags: int = 0,
    ) -> int:
        """What the plugin saw; its task_id."""
        number = next(self.ids)
        self.add(
            "nccl_task",
            begin_ticks=ms(enqueued),
            end_ticks=ms(max(end, enqueued)),
            group_hash=value,
            begin_device_ns=shown(DeviceClock.GLOBALTIMER, begin),
            end_device_ns=shown(DeviceClock.GLOBALTIMER, end),
            call_id=call,
            task_id=number,
            algorithm_id=self.stash.intern("RING"),
            protocol_id=self.stash.intern("LL"),
            channels_count=channels,
            timed_count=channels if begin >= 0 else 0,
            op_code=int(op),
            nccl_flags=flags,
            device_index=0,
        )
        return number

    def channel(self, task: int, index: int, begin: float, end: float) -> None:
        """One channel of a task on the device."""
        self.add(
            "nccl_channel",
            begin_device_ns=shown(DeviceClock.GLOBALTIMER, begin),
            end_device_ns=shown(DeviceClock.GLOBALTIMER, end),
            task_id=task,
            channel_index=index,
        )

    def proxy(self, task: int, begin: float, end: float, *, size: int = 1000, wire: float = 0, send: int = 1) -> None:
        """One proxy operation."""
        self.add(
            "nccl_proxy",
            begin_ticks=ms(begin),
            end_ticks=ms(end),
            transfer_bytes=size,
            wire_wait_ticks=round(wire * 1e6),
            task_id=task,
            peer_rank=1,
            steps_count=3,
            is_send_code=send,
        )

    def group(self, value: int, *, name: str = "default_pg", backend: str = "nccl", members: str = "") -> None:
        """A process group of torch."""
        listed = members or ",".join(map(str, range(self.world)))
        ranks = listed.split(",")
        self.add(
            "group",
            ticks=ms(1),
            group_hash=value,
            name_id=self.stash.intern(name),
            backend_id=self.stash.intern(backend),
            members_id=self.stash.intern(listed),
            group_rank=ranks.index(str(self.rank)),
            group_size=len(ranks),
        )

    def torch_call(
        self,
        begin: float,
        returned: float,
        *,
        group: int,
        sequence: int,
        op: CollectiveOp = CollectiveOp.ALL_REDUCE,
        name: str = "c10d::allreduce_",
        flags: int = 4,
        end: float = -1,
        status: int = 3,
        peer: int = -1,
    ) -> int:
        """A c10d call; its collective_id. ``end`` is what the host claims to have seen."""
        number = next(self.ids)
        self.add(
            "collective_call",
            call_ticks=ms(begin),
            group_hash=group,
            sequence=sequence,
            message_bytes=4096,
            collective_id=number,
            name_id=self.stash.intern(name),
            peer_rank=peer,
            op_code=int(op),
            collective_flags=flags,
        )
        self.add(
            "collective_done",
            return_ticks=ms(returned),
            end_ticks=ms(end) if end >= 0 else 0,
            collective_id=number,
            status_code=status,
        )
        return number

    def waited(self, collective: int, begin: float, end: float) -> None:
        """Work.wait of a c10d call."""
        self.add("collective_wait", begin_ticks=ms(begin), end_ticks=ms(end), collective_id=collective)

    def kernel(
        self,
        begin: float,
        end: float,
        *,
        stream: int = 7,
        launch: tuple[float, float] = (-1, -1),
        name: str = "gemm",
        work: int = 1,
    ) -> None:
        """A kernel as CUPTI reports it."""
        number = next(self.ids)
        self.add(
            "kernel",
            begin_device_ns=shown(DeviceClock.CUPTI, begin),
            end_device_ns=shown(DeviceClock.CUPTI, end),
            launch_ticks=ms(launch[0]) if launch[0] >= 0 else 0,
            return_ticks=ms(launch[1]) if launch[0] >= 0 else 0,
            correlation_id=number,
            stream_index=stream,
            name_id=self.stash.intern(name),
            device_index=0,
            tid=self.tid if launch[0] >= 0 else 0,
            work_code=work,
        )

    def save(self) -> None:
        """Write the file."""
        self.stash.save()
