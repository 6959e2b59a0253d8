"""Traces of ByteDance's StragglerAnalysis: every operation of every worker of a large job, ``trace-NAME.parquet``.

    dp_rank stage rank step optype           start_ts duration seq_id mc mb_id gmc
         0     0    0   16 forward-compute      0.321    0.546      0  0     0   0   -> kernels
         0     0    0   16 forward-send         0.867    0.004      0 -1    -1  -1   -> kernels, collectives

``meta-NAME.yaml`` next to it says how many ranks the job had. Times are seconds of a GPU's timers from the begin of
their step, as 32-bit floats. What is read and what cannot be known: ``docs/importers/straggler.md``.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.files.bounded_parquet import parquet_file, read_parquet
from stashtrace.files.whole_files import open_binary
from stashtrace.importers.collective_names import subgroup_hash
from stashtrace.importers.import_context import Bools, ImportContext, Int64
from stashtrace.importers.import_limits import OutOfBoundsError
from stashtrace.importers.source import Source
from stashtrace.schema.groupby import Floats, GroupBy
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, DeviceWork, SpanKind, StreamFlag, ThreadRole
from stashtrace.schema.trace import DATA_PARALLEL_RANK, HOST_NOT_RECORDED, PIPELINE_STAGE

_MAGIC = b"PAR1"
_COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
#: A Parquet file describes itself at its end; the description of eleven columns has 6 KB.
_TAIL_BYTES = 1 << 16
_MOST_META_BYTES = 1 << 16
#: Repeated values need nearly no space in a Parquet file, so a hostile file has more rows per byte.
_MOST_ROWS_PER_BYTE = 100
_SECOND_NS = 1e9
#: Bound of the times within a step, in seconds.
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
#: Distance from a stage to its peer's, in stages.
_PEERS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}


def sniff(head: bytes, path: Path) -> bool:
    """Return True for Parquet files with the columns of these traces."""
    if not head.startswith(_MAGIC):
        return False
    try:
        with open_binary(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return False
    return all(name.encode() in tail for name in _COLUMNS)


def load(source: Source, context: ImportContext) -> None:
    """Read the workers of one job."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImporterError(
            f"{source.path} is a Parquet file, which needs pyarrow", hint="pip install 'stashtrace[arrow]'"
        ) from error
    with parquet_file(source.path) as file:
        if file.metadata.num_rows > _MOST_ROWS_PER_BYTE * source.size_bytes:
            raise OutOfBoundsError(str(source.path), f"says that it has {file.metadata.num_rows} rows")
        table = read_parquet(file, source.size_bytes, list(_COLUMNS))
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
    whole = _is_whole(numbers)
    if not whole.any():
        raise ImporterError(f"{source.path} holds no operation", hint="give the trace-*.parquet of StragglerAnalysis")
    if not whole.all():
        context.lose("damaged_rows", int(np.count_nonzero(~whole)), advice=f"{source.path.name}: rows without a time")
    sizes = _sizes(source.path)
    _Job({name: values[whole] for name, values in numbers.items()}, names, sizes, context).add()


def _is_whole(numbers: Mapping[str, Floats]) -> Bools:
    """Return which rows have an operation, a place and a time."""
    whole = np.ones(len(numbers["rank"]), dtype=bool)
    for name, values in numbers.items():
        limit = _LONGEST_STEP_S if name in ("start_ts", "duration") else float(1 << 40)
        with np.errstate(invalid="ignore"):
            whole &= np.isfinite(values) & (values >= 0) & (values < limit)
    return whole


def _sizes(path: Path) -> dict[str, int]:
    """Return the sizes of the job by dimension, from the file of metadata next to the trace; empty without one."""
    metadata = path.with_name(f"meta-{path.stem.removeprefix('trace-')}.yaml")
    try:
        with open_binary(metadata) as file:
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
        """Number of the group, the same on all its ranks."""
        return subgroup_hash(f"{self.name}:{','.join(map(str, self.members))}")


class _Job:
    """Rows of one file, with their times on one timeline."""

    def __init__(
        self, numbers: Mapping[str, Floats], names: list[str], sizes: Mapping[str, int], context: ImportContext
    ) -> None:
        self._context, self._names, self._sizes = context, names, sizes
        integers = {name: values.astype(np.int64) for name, values in numbers.items()}
        self._op, self._rank, self._sequence = integers["optype"], integers["rank"], integers["seq_id"]
        self._dp, self._stage = integers["dp_rank"], integers["stage"]
        begin = np.rint(numbers["start_ts"] * _SECOND_NS).astype(np.int64)
        end = begin + np.rint(numbers["duration"] * _SECOND_NS).astype(np.int64)
        # Each step counts from its begin. Steps are laid one after the other: the time between is not recorded.
        steps = GroupBy(integers["step"])
        self._numbers, self._step = steps.values, steps.number
        offsets = np.append(0, np.cumsum(steps.max(end)))[self._step]
        self._begin, self._end = begin + offsets, end + offsets
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
            # Where several streams communicate at once, the budget attributes the wait to the first one.
            streams = {name: context.tracks.stream(process, at, name) for at, name in enumerate(_STREAMS)}
            streams |= dict.fromkeys(_COMPUTE, streams["compute"])
            used = {name: rows[self._op[rows] == number] for number, name in enumerate(self._names)}
            for name, at_rows in used.items():
                if len(at_rows) and name in streams:
                    self._add_operations(at_rows, name, process, thread, streams[name])
            context.say(HOST_NOT_RECORDED, "operations of the device alone", process)
            context.say(PIPELINE_STAGE, str(self._stage[rows[0]]), process)
            context.say(DATA_PARALLEL_RANK, str(self._dp[rows[0]]), process)
            self._add_device(
                process,
                {streams[name]: name in _COMPUTE for name, at_rows in used.items() if name in streams and len(at_rows)},
            )
        unknown = [n for n, name in enumerate(self._names) if name not in (*_STREAMS, *_COMPUTE, _NOT_TIMED)]
        if count := int(np.count_nonzero(np.isin(self._op, unknown))):
            shown = ", ".join(self._names[n] for n in unknown)
            context.lose("unknown_operations", count, advice=f"operations that no version so far had: {shown[:200]}")
        shown = ", ".join(f"{name} {size}" for name, size in self._sizes.items())
        context.say("straggler.sizes", shown or "no meta-*.yaml next to the trace")
        context.say("straggler.times", "within each step as recorded; steps are placed one after the other")
        context.not_recorded("host, files, batches, operations inside a tensor-parallel group")

    def _add_steps(self, rows: Int64, thread: int) -> None:
        """Add the steps of a rank, from its first operation to the end of its last one."""
        steps = GroupBy(self._step[rows])
        numbers = self._numbers[steps.values]
        self._context.add(
            "spans",
            begin_ns=steps.min(self._begin[rows]),
            end_ns=steps.max(self._end[rows]),
            track_id=np.full(len(steps), thread),
            kind_code=int(SpanKind.STEP),
            name_code=self._context.codes(f"step {number}" for number in numbers.tolist()),
            value=numbers,
        )

    def _add_operations(self, rows: Int64, name: str, process: int, thread: int, stream: int) -> None:
        context, is_communication = self._context, name not in _COMPUTE
        context.add(
            "kernels",
            begin_ns=self._begin[rows],
            end_ns=self._end[rows],
            process_id=np.full(len(rows), process),
            device_index=0,
            track_id=stream,
            thread_track_id=thread,
            # Launches are not recorded, but steps are cut on the device by work that has one.
            launch_ns=self._begin[rows],
            return_ns=-1,
            name_code=context.code(name),
            work_code=int(DeviceWork.COMMUNICATION if is_communication else DeviceWork.KERNEL),
        )
        if is_communication:
            self._add_collectives(rows, name, process, thread, stream)

    def _add_collectives(self, rows: Int64, name: str, process: int, thread: int, stream: int) -> None:
        context = self._context
        rank, dp, stage = int(self._rank[rows[0]]), int(self._dp[rows[0]]), int(self._stage[rows[0]])
        group, op, peer = self._partners(name, rank, dp, stage)
        if group is None:
            return
        # The same numbers on all ranks, over all steps.
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
        context.add_group(process, group.hash, group.name, members=group.members, group_size=group.size)

    def _partners(self, name: str, rank: int, dp: int, stage: int) -> tuple[_Group | None, CollectiveOp, int]:
        """Return group, operation and peer of a kind of communication for one rank; no group without a partner."""
        if name in _PEERS:
            peer = self._rank_at.get((dp, (stage + _PEERS[name]) % self._stages))
            sends = name.endswith("send")
            op = CollectiveOp.SEND if sends else CollectiveOp.RECEIVE
            if peer is None or peer == rank:
                return None, op, -1
            # With a group for each direction both sides give a message the same number.
            pair = (rank, peer) if sends else (peer, rank)
            return _Group(f"pp {name.partition('-')[0]}", pair, 2), op, 1 - pair.index(rank)
        op, scope = _COLLECTIVES[name]
        if scope == _TENSOR:
            return _Group(f"tp of rank {rank}", (rank,), max(self._sizes.get("tp_size", 1), 1)), op, -1
        ranks = self._rank_at.items()
        if scope == _DATA:
            title, members = f"dp stage {stage} {name}", [r for (_, s), r in ranks if s == stage]
        elif scope == _ENDS:
            title, ends = f"embedding dp {dp}", (0, self._stages - 1)
            members = [r for (d, s), r in ranks if d == dp and s in ends]
        else:
            title, members = "all workers", list(self._rank_at.values())
        return _Group(title, tuple(sorted(members)), len(members)), op, -1

    def _add_device(self, process: int, streams: Mapping[int, bool]) -> None:
        """Add the GPU of a rank, and its streams with whether each computes."""
        for track, computes in streams.items():
            self._context.add(
                "streams",
                track_id=track,
                process_id=process,
                device_index=0,
                stream_flags=int(StreamFlag.CARRIES_COMPUTE) * computes,
            )
        self._context.add_device(process, 0, "GPU")
