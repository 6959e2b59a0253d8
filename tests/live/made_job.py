"""A made-up job of some ranks with a loader worker each, as files: lengths are known, and a long run is cheap.

Each step of each rank: waits for a batch of its worker, forward, backward with an all-reduce that ends when the last
rank has entered, optimizer. Lengths vary by a fixed seed; chosen steps of chosen ranks take longer in the forward.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stash_files import REALTIME_OFFSET_NS, START_NS, StashWriter, write_run_json

from stashtrace.schema.kinds import BatchPhase, CollectiveOp, IoFlag, IoOp, Phase, PhaseFlag, ThreadRole

MS = 1_000_000
_GROUP = 77


#: What was asked for -> name of each file of the job -> what it holds.
_written: dict[str, dict[str, bytes]] = {}


def write_job(folder: Path, **job: Any) -> None:
    """Write the files of a job; ``job``: as :func:`_write_job` has it. The same job is made up once."""
    key = repr(sorted(job.items()))
    if key not in _written:
        with tempfile.TemporaryDirectory() as made:
            _write_job(Path(made), **job)
            _written[key] = {path.name: path.read_bytes() for path in Path(made).iterdir()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in _written[key].items():
        (folder / name).write_bytes(data)


def _write_job(
    folder: Path,
    *,
    ranks_count: int = 2,
    steps_count: int = 200,
    step_ms: float = 100.0,
    late_ms: Mapping[tuple[int, int], float] | None = None,
    slow_read_ms: Mapping[tuple[int, int], float] | None = None,
    dead: Collection[tuple[int, int]] = (),
    restart: str = "",
    begin_ms: float = 100.0,
    first_pid: int = 1000,
    lockstep: bool = True,
    waits: bool = False,
    waits_s: float = 20.0,
    hosts: Sequence[str] = ("node01",),
    evaluates: Collection[tuple[int, int]] = (),
    inside_count: int = 0,
    reads_count: int = 1,
) -> None:
    """Write the files of a job.

    ``late_ms``: (rank, step) -> how much longer its forward takes. ``slow_read_ms``: the same of the read of its
    batch. ``dead``: (rank, step) at which a rank's files end. ``restart``: TORCHELASTIC_RESTART_COUNT; empty for a
    job that is not elastic. ``begin_ms``: of the first step; the processes begin 100 ms before it. ``hosts``: the
    ranks are divided among them, in order. ``evaluates``: (rank, step) after which a rank makes a forward under
    ``no_grad``. ``lockstep``: whether all ranks end where one does; else the others go on. ``waits``: whether the
    others call the all-reduce that a dead rank does not, and their workers make a batch ``waits_s`` later.
    ``reads_count``: of a batch, one after the other. ``inside_count``: all-reduces a step in a group of the ranks
    of each host.
    """
    random = np.random.default_rng(11)
    late_ms, ends = late_ms or {}, dict(dead)
    starts = np.full(ranks_count, START_NS + round(begin_ms * MS))
    host_of = [hosts[rank * len(hosts) // ranks_count] for rank in range(ranks_count)]
    common = (ranks_count, first_pid, restart, begin_ms)
    mains = [_Main(folder, rank, *common, host_of[rank]) for rank in range(ranks_count)]
    workers = [_Worker(folder, rank, *common, host_of[rank]) for rank in range(ranks_count)]
    made = starts.copy()
    for step in range(steps_count):
        entered = np.zeros(ranks_count, dtype=np.int64)
        for rank, (main, worker) in enumerate(zip(mains, workers, strict=True)):
            if step >= ends.get(rank, steps_count):
                entered[rank] = -1
                continue
            fetch, prep = (round(step_ms * share * MS * random.uniform(0.8, 1.2)) for share in (0.25, 0.3))
            fetch += round((slow_read_ms or {}).get((rank, step), 0.0) * MS)
            ready = worker.batch(step, int(made[rank]), fetch, prep, reads_count)
            made[rank] = ready
            got = max(int(starts[rank]) + 200_000, ready + 50_000)
            main.wait(step, int(starts[rank]), got)
            forward = round((step_ms * 0.2 * random.uniform(0.9, 1.1) + late_ms.get((rank, step), 0.0)) * MS)
            main.phase(Phase.FORWARD, got + 30_000, got + 30_000 + forward, name="Net")
            entered[rank] = main.backward(got + 30_000 + forward, round(step_ms * 0.15 * MS))
        if (entered < 0).any() and lockstep:
            for main, at in zip(mains, entered.tolist(), strict=True):
                if at >= 0 and waits:
                    main.enter(step, at)
            for rank, worker in enumerate(workers):
                if waits and rank not in ends:
                    worker.batch(steps_count, int(entered.max()) + round(waits_s * 1e9), MS, MS)
            break
        done = int(entered.max()) + round(step_ms * 0.05 * MS)
        for rank, main in enumerate(mains):
            if entered[rank] >= 0:
                starts[rank] = main.reduce(step, int(entered[rank]), done)
                if inside_count:
                    members = [other for other, host in enumerate(host_of) if host == host_of[rank]]
                    starts[rank] = main.reduce_inside(members, step, inside_count, int(starts[rank]))
                if (rank, step) in evaluates:
                    starts[rank] = main.evaluate(int(starts[rank]), round(step_ms * 0.5 * MS))
    for main, worker, end in zip(mains, workers, starts.tolist(), strict=True):
        main.save(end)
        worker.save(end)
    write_run_json(folder)


class _Process:
    def __init__(
        self,
        folder: Path,
        pid: int,
        ppid: int,
        rank: int,
        ranks_count: int,
        restart: str,
        begin_ms: float,
        host: str,
    ) -> None:
        environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks_count), "LOCAL_RANK": str(rank)}
        if restart:
            environment |= {"GROUP_RANK": "0", "TORCHELASTIC_RESTART_COUNT": restart}
        self.begin_ns = START_NS + round((begin_ms - 100.0) * MS)
        started = {"start_ticks": self.begin_ns, "start_monotonic_ns": self.begin_ns}
        started["start_realtime_ns"] = self.begin_ns + REALTIME_OFFSET_NS
        self.file = StashWriter(folder, host=host, pid=pid, ppid=ppid, env=environment, metadata=started)
        self.rows: dict[str, list[tuple[object, ...]]] = {}

    def add(self, record: str, **fields: object) -> None:
        self.rows.setdefault(record, []).append(self.file.row(record, **fields))

    def learn(self, **facts: str) -> None:
        for key, value in facts.items():
            at = self.begin_ns + MS
            self.add("metadata", ticks=at, key_id=self.file.intern(key), value_id=self.file.intern(value))

    def save(self, end_ns: int) -> None:
        seconds = np.arange((self.begin_ns - START_NS) / 1e6, (end_ns - START_NS) / 1e6 + 3000, 1000.0)
        self.file.sync(*(seconds + 7.0 * (self.file.pid % 10)), drift_ppb=800)
        for record, rows in self.rows.items():
            self.file.add(record, rows)
        self.file.save()


class _Main(_Process):
    def __init__(
        self, folder: Path, rank: int, ranks_count: int, first_pid: int, restart: str, begin_ms: float, host: str
    ) -> None:
        super().__init__(folder, first_pid + 10 * rank, 1, rank, ranks_count, restart, begin_ms, host)
        self.rank = rank
        self.learn(rank=str(rank), world_size=str(ranks_count))
        text = self.file.intern
        members = ",".join(map(str, range(ranks_count)))
        self.add("thread_info", ticks=self.begin_ns + MS, tid=self.file.pid, role_code=int(ThreadRole.STEP))
        self.add(
            "group",
            ticks=self.begin_ns + MS,
            group_hash=_GROUP,
            name_id=text("default"),
            backend_id=text("gloo"),
            members_id=text(members),
            group_rank=rank,
            group_size=ranks_count,
        )

    def phase(self, phase: Phase, begin: int, end: int, name: str) -> None:
        fields = {"phase_code": int(phase), "phase_flags": int(PhaseFlag.TRAINING), "name_id": self.file.intern(name)}
        cpu = {"begin_cpu_ns": begin - START_NS, "end_cpu_ns": end - START_NS}
        self.add("phase_span", begin_ticks=begin, end_ticks=end, **fields, **cpu)

    def wait(self, index: int, begin: int, end: int) -> None:
        fields = {"loader_id": 5, "batch_index": index, "worker_id": 0, "phase_code": int(BatchPhase.WAIT)}
        self.add("batch", begin_ticks=begin, end_ticks=end, cpu_ns=-1, runqueue_ns=-1, **fields)

    def backward(self, begin: int, length: int) -> int:
        """Remember the begin of the backward, and return when it calls the all-reduce."""
        self._backward_ns = begin
        return begin + length

    def enter(self, step: int, entered: int) -> None:
        """Call the all-reduce of a step."""
        self.add(
            "collective_call",
            call_ticks=entered,
            group_hash=_GROUP,
            sequence=step,
            message_bytes=1 << 20,
            collective_id=step + 1,
            name_id=self.file.intern("c10d::allreduce_"),
            peer_rank=-1,
            op_code=int(CollectiveOp.ALL_REDUCE),
        )

    def reduce(self, step: int, entered: int, done: int) -> int:
        """Finish the step, and return its end."""
        self.enter(step, entered)
        self.add("collective_done", return_ticks=entered + 20_000, end_ticks=done, collective_id=step + 1)
        self.add("collective_wait", begin_ticks=entered + 30_000, end_ticks=done, collective_id=step + 1)
        end = done + 400_000
        self.phase(Phase.BACKWARD, self._backward_ns, done + 10_000, name="")
        self.phase(Phase.OPTIMIZER, done + 50_000, end, name="SGD")
        return end

    def reduce_inside(self, members: Sequence[int], step: int, count: int, begin: int) -> int:
        """Make all-reduces with the ranks of this host, and return the end of the last one."""
        text = self.file.intern
        group = 1000 + members[0]
        if not step:
            self.add(
                "group",
                ticks=begin,
                group_hash=group,
                name_id=text("host"),
                backend_id=text("gloo"),
                members_id=text(",".join(map(str, members))),
                group_rank=members.index(self.rank),
                group_size=len(members),
            )
        for number in range(step * count, (step + 1) * count):
            key = 1_000_000 + number
            fields = {
                "group_hash": group,
                "sequence": number,
                "collective_id": key,
                "op_code": int(CollectiveOp.ALL_REDUCE),
            }
            self.add("collective_call", call_ticks=begin, message_bytes=1 << 10, peer_rank=-1, **fields)
            self.add("collective_done", return_ticks=begin + 5_000, end_ticks=begin + 40_000, collective_id=key)
            self.add("collective_wait", begin_ticks=begin + 6_000, end_ticks=begin + 40_000, collective_id=key)
            begin += 50_000
        return begin

    def evaluate(self, begin: int, length: int) -> int:
        """Make a forward without gradients behind a step, and return its end."""
        cpu = {"begin_cpu_ns": begin - START_NS, "end_cpu_ns": begin + length - START_NS}
        fields = {"phase_code": int(Phase.FORWARD), "phase_flags": 0, "name_id": self.file.intern("Net")}
        self.add("phase_span", begin_ticks=begin + 50_000, end_ticks=begin + length, **fields, **cpu)
        return begin + length


class _Worker(_Process):
    def __init__(
        self, folder: Path, rank: int, ranks_count: int, first_pid: int, restart: str, begin_ms: float, host: str
    ) -> None:
        super().__init__(
            folder, first_pid + 10 * rank + 1, first_pid + 10 * rank, rank, ranks_count, restart, begin_ms, host
        )
        self.learn(role="worker", worker_id="0")
        self.add("thread_info", ticks=self.begin_ns + MS, tid=self.file.pid, role_code=int(ThreadRole.WORKER))

    def batch(self, index: int, begin: int, fetch: int, prep: int, reads_count: int = 1) -> int:
        """Make one batch, and return when it is ready."""
        end = begin + fetch + prep
        fields = {"loader_id": 5, "batch_index": index, "worker_id": 0, "phase_code": int(BatchPhase.FETCH)}
        self.add("batch", begin_ticks=begin, end_ticks=end, cpu_ns=prep, runqueue_ns=0, **fields)
        for number in range(reads_count):
            self.add(
                "io_op",
                begin_ticks=begin + 10_000 + number * (fetch // reads_count),
                duration_ticks=fetch // reads_count,
                path_id=self.file.intern(f"/data/shard-{index % 4:04}.bin"),
                op_code=int(IoOp.READ),
                io_flags=int(IoFlag.BLOCKED | IoFlag.BLOCK_INPUT),
                result_bytes=1 << 16,
            )
        return end
