"""Traces of ByteDance's StragglerAnalysis: every operation of every worker of a large job, ``trace-NAME.parquet``.

    dp_rank stage rank step optype           start_ts duration seq_id mc mb_id gmc
         0     0    0   16 forward-compute      0.321    0.546      0  0     0   0   -> kernels
         0     0    0   16 forward-send         0.867    0.004      0 -1    -1  -1   -> kernels, collectives

``meta-NAME.yaml`` beside it says how many ranks the job had. Times are seconds of a GPU's timers from the begin of
their step, as 32-bit floats. What is read and what cannot be known: ``docs/importers/straggler.md``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import OutOfBoundsError
from stashtrace.importers.context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, DeviceWork, SpanKind, StreamFlag, ThreadRole
from stashtrace.schema.trace import DATA_PARALLEL_RANK, HOST_NOT_RECORDED, PIPELINE_STAGE

Int64 = npt.NDArray[np.int64]

_MAGIC = b"PAR1"
_COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
#: A Parquet file describes itself at its end; of eleven columns the description has 6 KB.
_TAIL_BYTES = 1 << 16
_MOST_META_BYTES = 1 << 16
#: Repeated values cost a Parquet file next to nothing: a file that is made to harm has more rows by byte.
_MOST_ROWS_PER_BYTE = 100
_SECOND_NS = 1e9
#: No step lasts longer, in seconds.
_LONGEST_STEP_S = 1e6
_SIZES = re.compile(r"^(\w+_size)\s*:\s*(\d{1,9})\s*$", re.MULTILINE)

_COMPUTE = ("forward-compute", "backward-compute", "optimizer")
_NOT_TIMED = "gc"
#: Operations of all data-parallel workers of a stage, of the first and the last stage, of all workers, and inside a
#: tensor-parallel group, of which the trace has one worker.
_DATA, _ENDS, _ALL, _TENSOR = "dp", "embedding", "all", "tp"
_COLLECTIVES: dict[str, tuple[CollectiveOp, str]] = {
    "params-all-gather": (CollectiveOp.ALL_GATHER, _DATA),
    "grads-reduce-scatter": (CollectiveOp.REDUCE_SCATTER, _DATA),
    "separate-grads-all-reduce": (CollectiveOp.ALL_REDUCE, _DATA),
    "embedding-grads-all-reduce": (CollectiveOp.ALL_REDUCE, _ENDS),
    # Most of it is the all-reduce of the norm of all gradients.
    "optimizer-clip-main-grad": (CollectiveOp.ALL_REDUCE, _ALL),
    "layernorm-grads-all-reduce": (CollectiveOp.ALL_REDUCE, _TENSOR),
}
#: A stream for each kind of communication, as the job had them.
_STREAMS = ("compute", "forward-recv", "backward-recv", *_COLLECTIVES, "forward-send", "backward-send")
#: By how many stages its peer is further on.
_PEERS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}


def sniff(head: bytes, path: Path) -> bool:
    """Whether a Parquet file has the columns of these traces."""
    if not head.startswith(_MAGIC):
        return False
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return False
    return all(name.encode() in tail for name in _COLUMNS)


def load(source: Source, context: ImportContext) -> None:
    """Read the workers of one job."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImporterError(
            f"{source.path} is a Parquet file, which needs pyarrow", hint="pip install 'stashtrace[arrow]'"
        ) from error
    with parquet.ParquetFile(source.path) as file:
        if file.metadata.num_rows > _MOST_ROWS_PER_BYTE * source.size_bytes:
            raise OutOfBoundsError(str(source.path), f"says that it has {file.metadata.num_rows} rows")
        table = file.read(columns=list(_COLUMNS))
    source.passed(source.size_bytes)
    column = table["optype"].combine_chunks().dictionary_encode()
    column = column if not hasattr(column, "chunks") else column.combine_chunks()
    names = [str(name) for name in column.dictionary.to_pylist()]
    numbers = {
        name: np.asarray(table[name].fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.float64)
        for name in _COLUMNS
        if name != "optype"
    }
    numbers["optype"] = np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.float64)
    whole = _whole_rows(numbers)
    if not whole.any():
        raise ImporterError(f"{source.path} holds no operation", hint="give the trace-*.parquet of StragglerAnalysis")
    if not whole.all():
        context.lose("damaged_rows", int(np.count_nonzero(~whole)), advice=f"{source.path.name}: rows without a time")
    sizes = _sizes(source.path)
    job = _Job({name: values[whole] for name, values in numbers.items()}, names, sizes, source.path.stem, context)
    job.add()


def _whole_rows(numbers: Mapping[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.bool_]:
    """Rows that say what ran where and when."""
    whole = np.ones(len(numbers["rank"]), dtype=bool)
    for name, values in numbers.items():
        limit = _LONGEST_STEP_S if name in ("start_ts", "duration") else float(1 << 40)
        with np.errstate(invalid="ignore"):
            whole &= np.isfinite(values) & (values >= 0) & (values < limit)
    return whole


def _sizes(path: Path) -> dict[str, int]:
    """Sizes of the job by dimension, out of the file of metadata beside the trace; empty without one."""
    beside = path.with_name(f"meta-{path.stem.removeprefix('trace-')}.yaml")
    try:
        with beside.open("rb") as file:
            text = file.read(_MOST_META_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    return {name: int(size) for name, size in _SIZES.findall(text)}


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks that communicate; ``members`` in group order."""

    name: str
    members: tuple[int, ...]
    size: int

    @property
    def hash(self) -> int:
        """The same for the same group of the same load."""
        text = f"{self.name}:{','.join(map(str, self.members))}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Job:
    """Rows of one file, with their times on one time line."""

    def __init__(
        self,
        numbers: Mapping[str, npt.NDArray[np.float64]],
        names: list[str],
        sizes: Mapping[str, int],
        stem: str,
        context: ImportContext,
    ) -> None:
        self._context, self._names, self._sizes, self._stem = context, names, sizes, stem
        integers = {name: values.astype(np.int64) for name, values in numbers.items()}
        self._op, self._rank, self._sequence = integers["optype"], integers["rank"], integers["seq_id"]
        self._dp, self._stage = integers["dp_rank"], integers["stage"]
        begin = np.rint(numbers["start_ts"] * _SECOND_NS).astype(np.int64)
        end = begin + np.rint(numbers["duration"] * _SECOND_NS).astype(np.int64)
        # Each step counts from its own begin. They are laid one behind the other: what lay between is not recorded.
        self._numbers, self._step = np.unique(integers["step"], return_inverse=True)
        lengths = np.zeros(len(self._numbers), dtype=np.int64)
        np.maximum.at(lengths, self._step, end)
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self._begin, self._end = begin + offsets[self._step], end + offsets[self._step]
        places = zip(self._dp.tolist(), self._stage.tolist(), self._rank.tolist(), strict=True)
        self._rank_at = {(dp, stage): rank for dp, stage, rank in set(places)}
        self._stages = max(sizes.get("pp_size", 0), int(self._stage.max()) + 1)
        self._process: dict[int, int] = {}

    def add(self) -> None:
        """Fill the tables."""
        context = self._context
        context.realtime = False
        world = self._sizes.get("world_size", -1)
        for rank in np.unique(self._rank).tolist():
            rows = np.flatnonzero(self._rank == rank)
            process = self._process[rank] = context.process(
                pid=0, rank=rank, world_size=world, rank_from="file", alone=True
            )
            thread = context.tracks.thread(process, 0)
            context.tracks.describe_thread(process, 0, name="worker", role=int(ThreadRole.STEP))
            self._add_steps(rows, thread)
            # Of streams that communicate at once, the budget asks the first one whom it waits for.
            streams = {name: context.tracks.stream(process, at, name) for at, name in enumerate(_STREAMS)}
            streams |= dict.fromkeys(_COMPUTE, streams["compute"])
            used = {name: rows[self._op[rows] == number] for number, name in enumerate(self._names)}
            for name, own in used.items():
                if len(own) and name in streams:
                    self._add_operations(own, name, process, thread, streams[name])
            context.say(HOST_NOT_RECORDED, "operations of the device alone", process)
            context.say(PIPELINE_STAGE, str(self._stage[rows[0]]), process)
            context.say(DATA_PARALLEL_RANK, str(self._dp[rows[0]]), process)
            self._add_device(
                process, {streams[name]: name in _COMPUTE for name, own in used.items() if name in streams and len(own)}
            )
        unknown = [n for n, name in enumerate(self._names) if name not in (*_STREAMS, *_COMPUTE, _NOT_TIMED)]
        if count := int(np.count_nonzero(np.isin(self._op, unknown))):
            shown = ", ".join(self._names[n] for n in unknown)
            context.lose("unknown_operations", count, advice=f"operations that no version so far had: {shown[:200]}")
        shown = ", ".join(f"{name} {size}" for name, size in self._sizes.items())
        context.say("straggler.sizes", shown or "no meta-*.yaml beside the trace")
        context.say("straggler.times", "each step from its own begin; steps are laid one behind the other")
        context.say_once("not_recorded", "host, files, batches, operations inside a tensor-parallel group")

    def _add_steps(self, rows: Int64, thread: int) -> None:
        """Steps of a rank, from its first operation to the end of its last one."""
        used, step = np.unique(self._step[rows], return_inverse=True)
        begin, end = np.full(len(used), np.iinfo(np.int64).max), np.zeros(len(used), dtype=np.int64)
        np.minimum.at(begin, step, self._begin[rows])
        np.maximum.at(end, step, self._end[rows])
        numbers = self._numbers[used]
        self._context.add(
            "spans",
            begin_ns=begin,
            end_ns=end,
            track_id=np.full(len(used), thread),
            kind_code=int(SpanKind.STEP),
            name_code=self._context.codes(f"step {number}" for number in numbers.tolist()),
            value=numbers,
        )

    def _add_operations(self, rows: Int64, name: str, process: int, thread: int, stream: int) -> None:
        """Rows of one kind of operation of a rank."""
        context, talks = self._context, name not in _COMPUTE
        context.add(
            "kernels",
            begin_ns=self._begin[rows],
            end_ns=self._end[rows],
            process_id=np.full(len(rows), process),
            device_index=0,
            track_id=stream,
            thread_track_id=thread,
            # Nothing is known of launches; steps are cut on the device by work that has one.
            launch_ns=self._begin[rows],
            return_ns=-1,
            name_code=context.code(name),
            work_code=int(DeviceWork.COMMUNICATION if talks else DeviceWork.KERNEL),
        )
        if talks:
            self._add_collectives(rows, name, process, thread, stream)

    def _add_collectives(self, rows: Int64, name: str, process: int, thread: int, stream: int) -> None:
        context = self._context
        rank, dp, stage = int(self._rank[rows[0]]), int(self._dp[rows[0]]), int(self._stage[rows[0]])
        group, op, peer = self._meeting(name, rank, dp, stage)
        if group is None:
            return
        # Numbered alike on all ranks, over all steps.
        per_step = int(self._sequence.max()) + 1
        context.add(
            "collectives",
            process_id=np.full(len(rows), process),
            track_id=thread,
            communicator_track_id=context.tracks.communicator(process, group.hash, group.name),
            group_hash=np.full(len(rows), group.hash, dtype=np.uint64),
            sequence=self._step[rows] * per_step + self._sequence[rows],
            op_code=int(op),
            name_code=context.code(name),
            message_bytes=-1,
            peer_rank=peer,
            call_ns=self._begin[rows],
            return_ns=-1,
            begin_ns=self._begin[rows],
            end_ns=self._end[rows],
            device_begin_ns=self._begin[rows],
            device_end_ns=self._end[rows],
            source_code=int(CollectiveSource.IMPORTED),
            stream_track_id=stream,
        )
        context.add(
            "groups",
            process_id=process,
            group_hash=np.array([group.hash], dtype=np.uint64),
            name_code=context.code(group.name),
            backend_code=context.code("nccl"),
            members_code=context.code(",".join(map(str, group.members))),
            group_rank=group.members.index(rank),
            group_size=group.size,
            crosses_hosts=-1,
        )

    def _meeting(self, name: str, rank: int, dp: int, stage: int) -> tuple[_Group | None, CollectiveOp, int]:
        """Group, operation and peer of a kind of communication as one rank sees it."""
        if name in _PEERS:
            other = self._rank_at.get((dp, (stage + _PEERS[name]) % self._stages))
            sends = name.endswith("send")
            op = CollectiveOp.SEND if sends else CollectiveOp.RECEIVE
            if other is None or other == rank:
                return None, op, -1
            # A group for each direction: then both sides number its messages alike.
            pair = (rank, other) if sends else (other, rank)
            return _Group(f"pp {name.partition('-')[0]}", pair, 2), op, 1 - pair.index(rank)
        op, whose = _COLLECTIVES[name]
        if whose == _DATA:
            members = sorted(r for (_, s), r in self._rank_at.items() if s == stage)
            return _Group(f"dp stage {stage} {name}", tuple(members), len(members)), op, -1
        if whose == _ENDS:
            ends = sorted(r for (d, s), r in self._rank_at.items() if d == dp and s in (0, self._stages - 1))
            return _Group(f"embedding dp {dp}", tuple(ends), len(ends)), op, -1
        if whose == _ALL:
            members = sorted(self._rank_at.values())
            return _Group("all workers", tuple(members), len(members)), op, -1
        return _Group(f"tp of rank {rank}", (rank,), max(self._sizes.get("tp_size", 1), 1)), op, -1

    def _add_device(self, process: int, streams: Mapping[int, bool]) -> None:
        """The GPU of a rank and its streams, with whether each computes."""
        context = self._context
        for track, computes in streams.items():
            context.add(
                "streams",
                track_id=track,
                process_id=process,
                device_index=0,
                stream_flags=int(StreamFlag.CARRIES_COMPUTE) * computes,
            )
        context.add(
            "devices",
            process_id=process,
            device_index=0,
            track_id=context.tracks.device(process, 0, "GPU"),
            name_code=context.code(""),
            memory_bytes=-1,
            multiprocessors_count=-1,
        )
