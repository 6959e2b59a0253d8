"""Write runs of any size with known stalls as .stash files, to test speed and accuracy.

Every rank trains by the same script: wait for a batch,
forward, backward, one all-reduce that ends when the last rank has entered and the transfer is over, optimizer. A
worker fetches a batch in open/stat/lseek/read/read/close calls of files in random order; ``fetch_ratio`` of
its time is blocked in storage. Rank ``late_rank`` computes ``late_ns`` longer in each step.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.analysis.intervals import Int64
from stashtrace.files.whole_files import whole_file, write_whole
from stashtrace.format.container import pack_head, pack_segment
from stashtrace.format.project import current_layouts
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, IoFlag, IoOp, Phase, PhaseFlag, ThreadRole

RUN_ID = "5e7700000000000000000000000000aa"
START_NS = 5_000_000_000_000
REALTIME_OFFSET_NS = 1_700_000_000_000_000_000
TICK_HZ = 2_500_000_000
_SEGMENT_ROWS = 1 << 14
_FILE_CALLS = 6
#: From the end of a worker's fetch to the moment at which its batch arrives.
HANDOFF_NS = 200_000


@dataclass(frozen=True, slots=True)
class SyntheticJob:
    """A made-up job; times of one step of one rank in ns."""

    #: Size; ``workers`` per rank.
    ranks: int = 2
    workers: int = 2
    steps: int = 100
    #: I/O calls of a worker per batch, as whole files of six calls.
    calls_per_batch: int = 600
    #: A step without lateness is their sum.
    wait_ns: int = 20_000_000
    forward_ns: int = 30_000_000
    backward_ns: int = 50_000_000
    transfer_ns: int = 10_000_000
    optimizer_ns: int = 5_000_000
    #: Who is late in its backward, and by how much; -1 for nobody.
    late_rank: int = -1
    late_ns: int = 0
    #: Share of a worker's fetch that is blocked in storage.
    fetch_ratio: float = 0.3
    #: Of the noise in durations of calls, and of the lengths of steps.
    seed: int = 0
    #: Standard deviation of the lengths of steps within the run, and of its mean from that of other seeds, as parts of
    #: ``step_ns``. All ranks compute for longer or shorter together, and neighbouring steps are similar. Without them
    #: steps are exact.
    spread_ratio: float = 0.0
    run_spread_ratio: float = 0.0

    def extra_ns(self) -> Int64:
        """By how much longer all ranks compute in each step than is said above; negative where shorter."""
        random = np.random.default_rng((self.seed, self.steps))
        of_run, *shocks = random.standard_normal(self.steps + 1).tolist()
        likeness, extra = 0.5, np.empty(self.steps)
        level = 0.0
        for step, shock in enumerate(shocks):  # each depends on the one before
            level = likeness * level + (1 - likeness**2) ** 0.5 * shock if step else shock
            extra[step] = self.spread_ratio * level + self.run_spread_ratio * of_run
        return np.maximum(np.rint(extra * self.step_ns).astype(np.int64), -self.backward_ns)

    def begins_ns(self) -> Int64:
        """Begin of each step since that of the first, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.step_ns + self.extra_ns())]).astype(np.int64)

    @property
    def step_ns(self) -> int:
        """Wall time of a step without its spread, the same on every rank because the collective ends together."""
        late = self.late_ns if 0 <= self.late_rank < self.ranks else 0
        return self.wait_ns + self.forward_ns + self.backward_ns + late + self.transfer_ns + self.optimizer_ns

    def truth_ns(self, rank: int) -> dict[str, int]:
        """Parts of a step of a rank; ``batch_wait`` is fetch, prep and hand-off together.

        The worker of a batch is blocked in storage for ``fetch_ratio`` of its time, in calls at random moments.
        """
        late = self.late_ns if rank == self.late_rank else 0
        return {
            "batch_wait": self.wait_ns,
            "compute": self.forward_ns + self.backward_ns + late + self.optimizer_ns,
            "straggler": self.straggler_ns(rank),
            "interconnect": self.transfer_ns if self.ranks > 1 else 0,
            "handoff": HANDOFF_NS,
        }

    def straggler_ns(self, rank: int) -> int:
        """Time of a step that this rank waits for the late one."""
        return self.late_ns if self.late_rank >= 0 and rank != self.late_rank else 0


class _File:
    """Writer of one .stash file: strings first, then rows. The file appears when ``with`` ends well."""

    def __init__(self, directory: Path, pid: int, ppid: int, env: dict[str, str], parent_incarnation: int = -1) -> None:
        metadata = {
            "run_id": RUN_ID,
            "host": "synth",
            "boot_id": "b007-synth",
            "netns": "net:[1]",
            "pid": pid,
            "ppid": ppid,
            "incarnation": 0,
            "parent_incarnation": parent_incarnation,
            "argv": ["python", "train.py"],
            "exe": "/usr/bin/python3",
            "env": env,
            "clock": "tsc",
            "tick_hz": TICK_HZ,
            "start_ticks": int(ticks(np.int64(0))),
            "start_monotonic_ns": START_NS,
            "start_realtime_ns": START_NS + REALTIME_OFFSET_NS,
            "collectors": [],
            "version": "0.1.0",
        }
        self.pid = pid
        self._path = directory / f"synth.{pid}.0.stash"
        self._head = pack_head(_native.schema()["records"], metadata)
        self._until_closed = contextlib.ExitStack()
        self._texts: dict[str, int] = {}
        self._sequences: dict[tuple[str, int], int] = {}

    def __enter__(self) -> _File:
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(whole_file(self._path))
            self._out: BinaryIO = stack.enter_context(open(partial, "wb", buffering=1 << 20))
            self._out.write(self._head)
            self._until_closed = stack.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._until_closed.__exit__(*raised)

    def intern(self, *texts: str) -> list[int]:
        """Return ids of texts; new ones are written at once."""
        parts = []
        for text in texts:
            if text not in self._texts:
                self._texts[text] = len(self._texts) + 1
                data = text.encode()
                parts += [
                    (self._texts[text], n, len(data), data[i : i + 56])
                    for n, i in enumerate(range(0, max(len(data), 1), 56))
                ]
        if parts:
            self.add("string_part", np.array(parts, dtype=current_layouts()["string_part"].dtype))
        return [self._texts[text] for text in texts]

    def rows(self, record: str, count: int, **columns: Any) -> None:
        """Write rows from columns; fields not given are 0."""
        array = np.zeros(count, dtype=current_layouts()[record].dtype)
        for name, values in columns.items():
            array[name] = values
        self.add(record, array)

    def add(self, record: str, array: npt.NDArray[np.void], tid: int | None = None) -> None:
        tid = self.pid if tid is None else tid
        layout = current_layouts()[record]
        for at in range(0, len(array), _SEGMENT_ROWS):
            piece = array[at : at + _SEGMENT_ROWS]
            first = self._sequences.get((record, tid), 0)
            self._sequences[(record, tid)] = first + len(piece)
            self._out.write(
                pack_segment(
                    piece.tobytes(),
                    record_id=layout.record_id,
                    codec=0,
                    tid=tid,
                    ring_id=layout.record_id + 1000 * (tid - self.pid),
                    row_count=len(piece),
                    first_sequence=first,
                )
            )


def ticks(ns: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return TSC ticks at times of the run, ns."""
    since = np.asarray(ns, dtype=np.int64)
    return (10**15 + since * (TICK_HZ // 10**8) // 10).astype(np.uint64)


def write(directory: str | Path, job: SyntheticJob) -> int:
    """Write a run; return the number of events (texts and clock readings do not count)."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    end_ns = START_NS + int(job.begins_ns()[-1]) + 1_000_000_000
    run = {
        "format": 1,
        "run_id": RUN_ID,
        "command": ["torchrun", "train.py"],
        "begin_monotonic_ns": START_NS,
        "begin_realtime_ns": START_NS + REALTIME_OFFSET_NS,
        "end_monotonic_ns": end_ns,
        "end_realtime_ns": end_ns + REALTIME_OFFSET_NS,
        "host": "synth",
        "boot_id": "b007-synth",
        "exit_code": 0,
        "signal": 0,
        "collectors": [],
        "stashtrace_version": "0.1.0",
        "launcher_pid": 1,
    }
    write_whole(directory / "run.json", json.dumps(run))
    events = 0
    for rank in range(job.ranks):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job.ranks)}
        with _File(directory, _pid(job, rank), 1, env) as file:
            events += _rank_rows(file, job, rank)
        for worker in range(job.workers):
            with _File(directory, _pid(job, rank, worker), _pid(job, rank), env) as file:
                events += _worker_rows(file, job, rank, worker)
    return events


def _pid(job: SyntheticJob, rank: int, worker: int = -1) -> int:
    return 1000 + rank * (job.workers + 1) + worker + 1


def _clock(file: _File, job: SyntheticJob) -> None:
    moments = np.arange(0, int(job.begins_ns()[-1]) + 1_000_000_000, 1_000_000_000, dtype=np.int64)
    file.rows(
        "clock_sync",
        len(moments),
        ticks=ticks(moments),
        monotonic_ns=START_NS + moments,
        realtime_ns=START_NS + REALTIME_OFFSET_NS + moments,
        bracket_ticks=100,
    )


def _rank_rows(file: _File, job: SyntheticJob, rank: int) -> int:
    _clock(file, job)
    model, sgd, op, group, backend, main = file.intern("Net", "SGD", "c10d::allreduce_", "default_pg", "gloo", "main")
    members = file.intern(",".join(map(str, range(job.ranks))))[0]
    n = job.steps
    begin, step_end = job.begins_ns()[:-1], job.begins_ns()[1:]
    forward = begin + job.wait_ns
    backward = forward + job.forward_ns
    own = job.backward_ns + job.extra_ns() + (job.late_ns if rank == job.late_rank else 0)
    enter = backward + own
    end = step_end - job.optimizer_ns
    file.rows("thread_info", 1, ticks=ticks(0), tid=file.pid, name_id=main, role_code=int(ThreadRole.STEP))
    hash_ = 0xFEED
    file.rows(
        "group",
        1,
        ticks=ticks(0),
        group_hash=hash_,
        name_id=group,
        backend_id=backend,
        members_id=members,
        group_rank=rank,
        group_size=job.ranks,
    )
    file.rows(
        "batch",
        n,
        begin_ticks=ticks(begin),
        end_ticks=ticks(forward),
        loader_id=7 + rank,
        batch_index=np.arange(n),
        cpu_ns=0,
        runqueue_ns=0,
        worker_id=np.arange(n) % max(job.workers, 1),
        phase_code=int(BatchPhase.WAIT),
    )
    phase_begin = np.stack([forward, backward, end], axis=1).ravel()
    phase_end = np.stack([backward, end, step_end], axis=1).ravel()
    blocked_ns = np.where(job.ranks > 1, end - (enter + 20_000), 0)  # in the collective wait below
    ran_ns = np.stack([backward - forward, end - backward - blocked_ns, step_end - end], axis=1).ravel()
    cpu = np.cumsum(ran_ns)
    file.rows(
        "phase_span",
        3 * n,
        begin_ticks=ticks(phase_begin),
        end_ticks=ticks(phase_end),
        begin_cpu_ns=cpu - ran_ns,
        end_cpu_ns=cpu,
        begin_runqueue_ns=0,
        end_runqueue_ns=0,
        name_id=np.tile([model, model, sgd], n),
        phase_code=np.tile([int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER)], n),
        phase_flags=int(PhaseFlag.TRAINING),
    )
    if job.ranks > 1:
        ids = np.arange(1, n + 1)
        file.rows(
            "collective_call",
            n,
            call_ticks=ticks(enter),
            group_hash=hash_,
            sequence=np.arange(n),
            message_bytes=25 << 20,
            collective_id=ids,
            name_id=op,
            peer_rank=-1,
            op_code=int(CollectiveOp.ALL_REDUCE),
        )
        file.rows(
            "collective_done",
            n,
            return_ticks=ticks(enter + 10_000),
            begin_ticks=ticks(enter + 10_000),
            end_ticks=ticks(end),
            collective_id=ids,
        )
        file.rows("collective_wait", n, begin_ticks=ticks(enter + 20_000), end_ticks=ticks(end), collective_id=ids)
    return n * (7 if job.ranks > 1 else 4)


def _worker_rows(file: _File, job: SyntheticJob, rank: int, worker: int) -> int:
    """Write batches worker, worker + workers, ...: each is made during the steps before it is waited for."""
    _clock(file, job)
    keys = file.intern("role", "worker", "worker_id", str(worker))
    file.rows("metadata", 2, ticks=ticks(0), key_id=keys[0::2], value_id=keys[1::2])
    indices = np.arange(worker, job.steps, max(job.workers, 1), dtype=np.int64)
    span = job.step_ns * max(job.workers, 1) * 9 // 10
    done = job.begins_ns()[indices] + job.wait_ns - HANDOFF_NS
    begin = done - np.minimum(span, done)
    file.rows(
        "batch",
        len(indices),
        begin_ticks=ticks(begin),
        end_ticks=ticks(done),
        loader_id=7 + rank,
        batch_index=indices,
        cpu_ns=(done - begin) // 2,
        runqueue_ns=0,
        worker_id=worker,
        phase_code=int(BatchPhase.FETCH),
    )
    rng = np.random.default_rng((job.seed, rank, worker))
    files = job.calls_per_batch // _FILE_CALLS
    numbers = rng.permutation(min(20_000, max(files * len(indices), 1))).tolist()
    names = (f"/data/imagenet/train/n{i % 1000:08}/n{i % 1000:08}_{i:07}.JPEG" for i in numbers)
    paths = np.array(file.intern(*names), dtype=np.uint32)
    batches_at_once = max(1, (1 << 20) // max(files * _FILE_CALLS, 1))
    for at in range(0, len(indices) if files else 0, batches_at_once):
        part = slice(at, at + batches_at_once)
        file.add("io_op", _calls(job, rng, begin[part], done[part], files, paths))
    return len(indices) + len(indices) * files * _FILE_CALLS


def _calls(
    job: SyntheticJob, rng: np.random.Generator, begin: Int64, done: Int64, files: int, paths: npt.NDArray[np.uint32]
) -> npt.NDArray[np.void]:
    """Calls of some batches; each batch's calls fill its fetch, ``fetch_ratio`` of it blocked in reads."""
    count = files * _FILE_CALLS
    shape = (len(begin), count)
    rows = np.zeros(shape, dtype=current_layouts()["io_op"].dtype)
    weight = np.tile([4.0, 0.9, 0.7, 90.0, 0.8, 1.5], files) * rng.gamma(9, 1 / 9, shape)
    gaps = np.tile([0.5, 3.0, 0.9, 0.6, 0.9, 900.0], files) * rng.gamma(4, 1 / 4, shape)
    room = (done - begin)[:, None]
    calls = (weight * (room * job.fetch_ratio / weight.sum(axis=1, keepdims=True))).astype(np.int64)
    rest = (gaps * (room * (1 - job.fetch_ratio) / gaps.sum(axis=1, keepdims=True))).astype(np.int64)
    ends = np.cumsum(calls + rest, axis=1)
    start = begin[:, None] + ends - calls - rest
    file_of = np.repeat(rng.integers(0, len(paths), (len(begin), files)), _FILE_CALLS, axis=1)
    size = np.repeat(rng.integers(10_000, 150_000, (len(begin), files)), _FILE_CALLS, axis=1)
    position = np.tile(np.arange(_FILE_CALLS), files)
    first = ticks(start)
    rows["begin_ticks"] = first
    rows["duration_ticks"] = ticks(start + calls) - first
    rows["path_id"] = paths[file_of]
    rows["op_code"] = np.tile(
        [int(o) for o in (IoOp.OPEN, IoOp.STAT, IoOp.LSEEK, IoOp.READ, IoOp.READ, IoOp.CLOSE)], files
    )
    rows["offset_bytes"] = np.where(np.isin(position, (3, 4)), np.where(position == 4, size, 0), -1)
    rows["result_bytes"] = np.where(position == 3, size, 0)
    rows["io_flags"] = np.where(position == 3, int(IoFlag.SAMPLED | IoFlag.BLOCKED | IoFlag.BLOCK_INPUT), 0)
    return rows.ravel()
