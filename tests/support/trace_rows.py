"""TraceBuilder: a Trace put together row by row, for tests. Import it through `builders`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from device_rows import GpuBuilder, StreamBuilder

from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import (
    BatchPhase,
    Bracket,
    CollectiveOp,
    CollectiveSource,
    IoFlag,
    IoOp,
    Phase,
    PhaseFlag,
    ProcessRole,
    SpanKind,
    ThreadRole,
    TrackKind,
    WaitOp,
)
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

US = 1_000
MS = 1_000_000
S = 1_000_000_000
WORLD = 0xABCDEF  # group hash of the default group


class TraceBuilder:
    """Collects rows; :meth:`trace` makes the Trace.

    Parameters
    ----------
    hosts : sequence of str
        Host of each rank, the last one repeated; ranks of one host share its clock domain.
    """

    def __init__(self, hosts: Iterable[str] = ("node00",)) -> None:
        self.strings = StringPool()
        self.hosts = list(hosts)
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.ranks: dict[int, ProcessBuilder] = {}
        self._sequences: dict[int, int] = {}
        self._group_options: dict[int, dict[str, Any]] = {}

    def host(self, rank: int) -> str:
        return self.hosts[min(rank, len(self.hosts) - 1)]

    def add(self, table: str, **columns: Any) -> int:
        """Append one row to a table (columns left out are 0, or -1 where the schema says unknown); its number."""
        self.rows[table].append(columns)
        return len(self.rows[table]) - 1

    def process(
        self, *, rank: int, role: ProcessRole, worker: int = -1, parent: int = -1, name: str = ""
    ) -> ProcessBuilder:
        """Append a process with its main thread."""
        host, code = self.host(max(rank, 0)), self.strings.code
        process_id = len(self.rows["processes"])
        pid = 1000 + process_id
        self.add(
            "processes",
            process_id=process_id,
            host_code=code(host),
            boot_code=code(f"boot-{host}"),
            netns_code=code(f"net-{host}"),
            pid=pid,
            parent_process_id=parent,
            rank=rank,
            local_rank=rank,
            world_size=-1,
            role_code=int(role),
            worker_id=worker,
            name_code=code(name),
            begin_ns=None,
            end_ns=None,
        )
        step = role == ProcessRole.RANK
        track = self.track(process_id, pid, "main", ThreadRole.STEP if step else ThreadRole.WORKER)
        return ProcessBuilder(self, process_id, track, rank, worker)

    def track(
        self,
        process_id: int,
        native_id: int,
        name: str,
        role: ThreadRole = ThreadRole.UNKNOWN,
        kind: TrackKind = TrackKind.THREAD,
        unit: str = "",
    ) -> int:
        """Append a track; its id."""
        track_id = len(self.rows["tracks"])
        self.add(
            "tracks",
            track_id=track_id,
            process_id=process_id,
            kind_code=int(kind),
            native_id=native_id,
            role_code=int(role),
            name_code=self.strings.code(name),
            unit_code=self.strings.code(unit),
        )
        return track_id

    def rank(self, rank: int) -> ProcessBuilder:
        """The main process of a rank, made at first use."""
        if rank not in self.ranks:
            self.ranks[rank] = self.process(rank=rank, role=ProcessRole.RANK, name=f"rank {rank:03d}")
        return self.ranks[rank]

    def group(
        self,
        members: Iterable[int],
        *,
        group: int = WORLD,
        name: str = "default_pg",
        crosses_hosts: int | None = None,
        backend: str = "gloo",
    ) -> int:
        """Declare a process group on all its members; its hash. crosses_hosts None: from the hosts of the members."""
        ranks = list(members)
        if crosses_hosts is None:
            crosses_hosts = int(len({self.host(r) for r in ranks}) > 1)
        code = self.strings.code
        for position, rank in enumerate(ranks):
            self.add(
                "groups",
                process_id=self.rank(rank).process_id,
                rank=rank,
                group_hash=group,
                name_code=code(name),
                backend_code=code(backend),
                members_code=code(",".join(map(str, ranks))),
                group_rank=position,
                group_size=len(ranks),
                observed_count=-1,
                backend_count=-1,
                crosses_hosts=crosses_hosts,
                locality_code=code("test"),
            )
        self._group_options[group] = {"members": ranks}
        return group

    def collective(
        self,
        times: Mapping[int, tuple[int, ...]],
        *,
        op: CollectiveOp = CollectiveOp.ALL_REDUCE,
        group: int = WORLD,
        sequence: int | None = None,
        message_bytes: int = 1 << 20,
        peer_rank: int = -1,
        flags: int = 0,
        element: int = 0,
        status: int = 0,
    ) -> dict[int, int]:
        """Append one collective: rank -> (call, end), (call, return, end), (call, return, begin, end); end -1 = never.

        Returns rank -> collective_key. The default sequence is the next of the group.
        """
        if sequence is None:
            sequence = self._sequences.get(group, -1) + 1
        self._sequences[group] = max(sequence, self._sequences.get(group, -1))
        keys = {}
        for rank, given in times.items():
            call, end = given[0], given[-1]
            returned = given[1] if len(given) > 2 else call
            begin = given[2] if len(given) > 3 else -1
            process = self.rank(rank)
            keys[rank] = len(self.rows["collectives"])
            self.add(
                "collectives",
                collective_key=keys[rank],
                process_id=process.process_id,
                rank=rank,
                track_id=process.track_id,
                communicator_track_id=process.communicator(group),
                group_hash=group,
                sequence=sequence,
                op_code=int(op),
                name_code=self.strings.code(f"c10d::{op.name.lower()}_"),
                message_bytes=message_bytes,
                peer_rank=peer_rank,
                collective_flags=int(flags),
                element_code=int(element),
                call_ns=call,
                return_ns=returned,
                begin_ns=begin,
                end_ns=end,
                status_code=3 if end < 0 and status == 0 else status,
                source_code=0,
                device_begin_ns=-1,
                device_end_ns=-1,
                stream_track_id=-1,
            )
        return keys

    def meet(self, called: Mapping[int, int], end_ns: int, *, update_ns: int = 0, **options: Any) -> dict[int, int]:
        """Append a collective that each rank calls at its moment and waits for until the end; rank -> key.

        ``update_ns``: length of the optimizer that follows on each of them. Other options as for :meth:`collective`.
        """
        keys = self.collective({rank: (at, end_ns) for rank, at in called.items()}, **options)
        for rank, at in called.items():
            process = self.rank(rank).collective_wait(keys[rank], at, end_ns)
            if update_ns:
                process.phase("optimizer", end_ns, end_ns + update_ns)
        return keys

    def say(self, key: str, value: str, process_id: int = -1) -> TraceBuilder:
        """Append what the run says of itself, or one of its processes."""
        code = self.strings.code
        self.add("metadata", process_id=process_id, key_code=code(key), value_code=code(value))
        return self

    def clock(
        self, host: str, error_ns: int, *, reference: str = "a", method: str = "collectives", touch_ns: int = 0
    ) -> TraceBuilder:
        """Append by how much the clock of a host may be off, at all times and where the hosts have met."""
        code = self.strings.code
        self.add(
            "alignment",
            boot_code=code(f"boot-{host}"),
            reference_code=code(f"boot-{reference}"),
            error_ns=error_ns,
            touch_error_ns=touch_ns,
            method_code=code(method),
        )
        return self

    def device_collective(
        self,
        times: Mapping[int, tuple[int, int, int, int]],
        *,
        streams: Mapping[int, StreamBuilder] | None = None,
        source: CollectiveSource = CollectiveSource.EVENTS,
        bracket: bool = False,
        network_ns: int = -1,
        nccl_flags: int = 0,
        batch_key: int = 0,
        **options: Any,
    ) -> dict[int, int]:
        """Append one NCCL collective: rank -> (call, return, device begin, device end), device times -1 = untimed.

        ``bracket`` adds the bracket of its stream too; other options as for :meth:`collective`. rank -> key.
        """
        plain = {rank: (call, returned, begin, end) for rank, (call, returned, begin, end) in times.items()}
        keys = self.collective(plain, **options)
        for rank, (call, returned, begin, end) in times.items():
            stream = None if streams is None else streams.get(rank)
            row = self.rows["collectives"][keys[rank]]
            row.update(source_code=int(source), device_begin_ns=begin, device_end_ns=end)
            if stream is not None:
                row["stream_track_id"] = stream.track_id
                if bracket:
                    stream.bracket(Bracket.COLLECTIVE, begin, end, host=(call, returned), correlation=1 + keys[rank])
            self.add(
                "collective_details",
                collective_key=keys[rank],
                process_id=self.rank(rank).process_id,
                algorithm_code=self.strings.code("RING" if source == CollectiveSource.PLUGIN else ""),
                protocol_code=self.strings.code("SIMPLE" if source == CollectiveSource.PLUGIN else ""),
                channels_count=2 if source == CollectiveSource.PLUGIN else 0,
                timed_count=2 if source == CollectiveSource.PLUGIN and begin >= 0 else 0,
                nccl_flags=nccl_flags,
                batch_key=batch_key,
                network_ns=network_ns,
                transfer_bytes=-1 if network_ns < 0 else 1 << 20,
                gpu_wait_ns=-1 if network_ns < 0 else 0,
                peer_wait_ns=-1 if network_ns < 0 else 0,
                wire_wait_ns=network_ns,
                channel_skew_ns=-1,
                channel_spread_ns=-1,
            )
        return keys

    def counter(self, rank: int, name: str, values: Mapping[int, float], unit: str = "") -> TraceBuilder:
        """Append a counter track of a rank's process with its samples: ts_ns -> value."""
        track = self.track(self.rank(rank).process_id, 0, name, kind=TrackKind.COUNTER, unit=unit)
        for ts_ns, value in values.items():
            self.add("counters", ts_ns=ts_ns, track_id=track, value=value)
        return self

    def loss(
        self,
        name: str,
        count: int = 1,
        *,
        collector: str = "core",
        severity: int = 2,
        advice: str = "",
        process_id: int = -1,
    ) -> TraceBuilder:
        """Append a row of losses."""
        code = self.strings.code
        self.add(
            "losses",
            process_id=process_id,
            collector_code=code(collector),
            name_code=code(name),
            severity_code=severity,
            lost_count=count,
            advice_code=code(advice),
        )
        return self

    def trace(self, path: str = "") -> Trace:
        """The Trace. Groups not declared span all ranks seen in their collectives; process times span their rows."""
        for group in sorted({r["group_hash"] for r in self.rows["collectives"]} - set(self._group_options)):
            self.group(sorted({r["rank"] for r in self.rows["collectives"] if r["group_hash"] == group}), group=group)
        self._fill_processes()
        tables = {}
        for name, schema in TABLES.items():
            rows = self.rows[name]
            table = (
                Table(schema, {c.name: [r.get(c.name, 0) for r in rows] for c in schema.columns})
                if rows
                else Table.empty(schema)
            )
            if name == "io":
                table = table.sort_by("track_id", "begin_ns")
            tables[name] = table
        return Trace(self.strings, tables, path=path)

    def _fill_processes(self) -> None:
        owner = {t["track_id"]: t["process_id"] for t in self.rows["tracks"]}
        spans: dict[int, list[int]] = {}
        everything: list[int] = []
        for name, rows in self.rows.items():
            for row in rows if name != "processes" else ():
                process = row.get("process_id", owner.get(row.get("track_id", -1), -1))
                times = [
                    row[k]
                    for k in ("begin_ns", "end_ns", "call_ns", "ts_ns")
                    if row.get(k) is not None and row[k] != -1
                ]
                spans.setdefault(process, []).extend(times)
                everything.extend(times)
        ranks = [r["rank"] for r in self.rows["processes"] if r["role_code"] == ProcessRole.RANK]
        for row in self.rows["processes"]:
            times = spans.get(row["process_id"]) or [0]
            row["begin_ns"] = min(times) if row["begin_ns"] is None else row["begin_ns"]
            row["end_ns"] = max(times) if row["end_ns"] is None else row["end_ns"]
            row["world_size"] = len(ranks)


class ProcessBuilder:
    """Rows of one process on one thread; every method returns the builder, so calls chain."""

    def __init__(self, build: TraceBuilder, process_id: int, track_id: int, rank: int, worker_id: int) -> None:
        self.build, self.process_id, self.track_id, self.rank, self.worker_id = (
            build,
            process_id,
            track_id,
            rank,
            worker_id,
        )
        self._workers: dict[int, ProcessBuilder] = {}
        self._communicators: dict[int, int] = {}
        self._gpus: dict[int, GpuBuilder] = {}

    def gpu(self, index: int = 0, *, uuid: str = "", error_ns: int = 500, drift_ppb: int = 0) -> GpuBuilder:
        """A device of this process, made at first use; see device_rows.py."""
        if index not in self._gpus:
            self._gpus[index] = GpuBuilder(self, index, uuid, error_ns, drift_ppb)
        return self._gpus[index]

    def thread(self, name: str, role: ThreadRole = ThreadRole.UNKNOWN) -> ProcessBuilder:
        tid = 100_000 + len(self.build.rows["tracks"])
        track = self.build.track(self.process_id, tid, name, role)
        return ProcessBuilder(self.build, self.process_id, track, self.rank, self.worker_id)

    def worker(self, worker_id: int) -> ProcessBuilder:
        """A DataLoader worker of this rank, made at first use."""
        if worker_id not in self._workers:
            self._workers[worker_id] = self.build.process(
                rank=self.rank,
                role=ProcessRole.WORKER,
                worker=worker_id,
                parent=self.process_id,
                name=f"worker {worker_id}",
            )
        return self._workers[worker_id]

    def lives(self, begin_ns: int, end_ns: int) -> ProcessBuilder:
        """Set the interval of the process (default: the extent of its rows)."""
        self.build.rows["processes"][self.process_id].update(begin_ns=begin_ns, end_ns=end_ns)
        return self

    def communicator(self, group: int) -> int:
        """Track of a communicator of this process."""
        if group not in self._communicators:
            self._communicators[group] = self.build.track(
                self.process_id,
                group,
                "default_pg" if group == WORLD else f"group {group:x}",
                kind=TrackKind.COMMUNICATOR,
            )
        return self._communicators[group]

    def phase(
        self,
        kind: str,
        begin_ns: int,
        end_ns: int,
        *,
        flags: PhaseFlag = PhaseFlag.TRAINING,
        name: str = "",
        cpu: tuple[int, int] | None = None,
        runqueue: tuple[int, int] | None = None,
    ) -> ProcessBuilder:
        """Phase by name of the enumeration: forward, backward, optimizer, update_skipped, checkpoint, ..."""
        begin_cpu, end_cpu = cpu or (-1, -1)
        begin_wait, end_wait = runqueue or (-1, -1)
        self.build.add(
            "phases",
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.track_id,
            process_id=self.process_id,
            phase_code=int(Phase[kind.upper()]),
            phase_flags=int(flags),
            name_code=self.build.strings.code(name),
            begin_cpu_ns=begin_cpu,
            end_cpu_ns=end_cpu,
            begin_runqueue_ns=begin_wait,
            end_runqueue_ns=end_wait,
        )
        return self

    def batch(
        self,
        phase: BatchPhase,
        index: int,
        begin_ns: int,
        end_ns: int,
        *,
        worker: int | None = None,
        loader: int = 1,
        cpu: int = -1,
        runqueue: int = -1,
        major_faults: int = 0,
        block_inputs: int = 0,
    ) -> ProcessBuilder:
        """One phase of a batch, recorded by this thread."""
        self.build.add(
            "batches",
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.track_id,
            process_id=self.process_id,
            rank=self.rank,
            loader_id=loader,
            batch_index=index,
            worker_id=self.worker_id if worker is None else worker,
            phase_code=int(phase),
            cpu_ns=cpu,
            runqueue_ns=runqueue,
            major_faults_count=major_faults,
            block_inputs_count=block_inputs,
        )
        return self

    def batch_wait(self, index: int, begin_ns: int, end_ns: int, **options: Any) -> ProcessBuilder:
        """The main process inside next() for a batch; worker= says who made it (-1: the main process)."""
        return self.batch(BatchPhase.WAIT, index, begin_ns, end_ns, **options)

    def fetch(self, index: int, begin_ns: int, end_ns: int, **options: Any) -> ProcessBuilder:
        """Making of a batch: dataset and collate."""
        return self.batch(BatchPhase.FETCH, index, begin_ns, end_ns, **options)

    def io(
        self,
        begin_ns: int,
        end_ns: int,
        *,
        op: IoOp = IoOp.READ,
        path: str = "/data/file",
        blocked: bool = False,
        flags: int = 0,
        result_bytes: int = 4096,
        offset_bytes: int = -1,
    ) -> ProcessBuilder:
        """One I/O call; blocked=True adds SAMPLED | BLOCKED."""
        bits = flags | (IoFlag.SAMPLED | IoFlag.BLOCKED if blocked else 0)
        self.build.add(
            "io",
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.track_id,
            path_code=self.build.strings.code(path),
            op_code=int(op),
            io_flags=int(bits),
            offset_bytes=offset_bytes,
            result_bytes=result_bytes,
        )
        return self

    def wait(self, op: WaitOp, begin_ns: int, end_ns: int, *, ended_by: int = -1) -> ProcessBuilder:
        """A blocking wait of this thread; ``ended_by``: track of the thread that held the GIL when it ended."""
        self.build.add(
            "waits",
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.track_id,
            process_id=self.process_id,
            wait_code=int(op),
            gil_track_id=ended_by,
        )
        return self

    def collective_wait(self, key: int, begin_ns: int, end_ns: int) -> ProcessBuilder:
        """This thread inside Work.wait of a collective (key from TraceBuilder.collective, -1 if unknown)."""
        self.build.add(
            "collective_waits",
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.track_id,
            process_id=self.process_id,
            collective_key=key,
        )
        return self

    def span(self, kind: SpanKind, begin_ns: int, end_ns: int, name: str = "", value: int = 0) -> ProcessBuilder:
        """A span of this thread: annotation, garbage collection, ..."""
        self.build.add(
            "spans",
            span_id=len(self.build.rows["spans"]),
            begin_ns=begin_ns,
            end_ns=end_ns,
            track_id=self.track_id,
            kind_code=int(kind),
            name_code=self.build.strings.code(name),
            correlation_id=0,
            value=value,
        )
        return self

    def annotate(self, name: str, begin_ns: int, end_ns: int) -> ProcessBuilder:
        return self.span(SpanKind.USER, begin_ns, end_ns, name)

    def gc(self, begin_ns: int, end_ns: int) -> ProcessBuilder:
        """A garbage collection pause."""
        return self.span(SpanKind.GC, begin_ns, end_ns, "gc", 2)

    def compiles(self, name: str, begin_ns: int, end_ns: int, *, before: int = 0, reason: str = "") -> ProcessBuilder:
        """torch.compile compiles a function that it has compiled some times before."""
        if reason:
            self.span(SpanKind.COMPILE_REASON, begin_ns, begin_ns, reason, before)
        return self.span(SpanKind.COMPILE, begin_ns, end_ns, f"torch.compile {name}", before)

    def step_mark(self, ts_ns: int) -> ProcessBuilder:
        """stashtrace.step(): a step ends here."""
        return self.span(SpanKind.STEP_MARK, ts_ns, ts_ns, "step")
