"""One opened run during loading: files, clocks, identities, tracks. Made and used by ``loading.load`` alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from stashtrace.collectors.context import DecodeContext, DeviceTime, ProcessIdentity
from stashtrace.collectors.registry import Room, resolve
from stashtrace.errors import UsageError
from stashtrace.format.liveness import LiveRings
from stashtrace.format.project import current_layouts
from stashtrace.format.reader import RawRun, open_run
from stashtrace.format.stash_file import StashFile, pieces
from stashtrace.loading.clocks import device
from stashtrace.loading.clocks.align import align_tables, alignment_losses, lifes_of
from stashtrace.loading.clocks.host import HostClock, domain_of, host_clocks, start_ticks
from stashtrace.loading.clocks.meetings import pings_of
from stashtrace.loading.clocks.offset import STRAIGHT
from stashtrace.loading.collectives import GroupNotes, merge_collectives
from stashtrace.loading.identity import Identity, ProcessFacts, generations, identify
from stashtrace.loading.presence import choose_start, missing_loss, starts_loss
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import CollectiveSource, DeviceClock, ProcessRole, Severity, ThreadRole
from stashtrace.schema.possible import without_impossible
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import EventTables, LossRow, RawProcess, losses_columns
from stashtrace.schema.tracks import TrackRegistry

#: What is decoded to find out.
NEEDED = frozenset({"collectives", "groups"})
_DEVICE_CLOCK = {CollectiveSource.EVENTS: DeviceClock.EVENT, CollectiveSource.PLUGIN: DeviceClock.GLOBALTIMER}

#: Read in the first pass, before anything is decoded.
CORE_RECORDS = ("clock_sync", "clock_ping", "metadata", "thread_info", *device.RECORDS)

Path = str | os.PathLike[str]


class Session:
    """Everything that is known of a run before its rows are decoded. Make one with :meth:`open`."""

    def __init__(self, runs: Sequence[RawRun], files: list[StashFile], strings: StringPool, path: str) -> None:
        self.runs = runs
        self.files = files
        self.strings = strings
        self.path = path
        self.tracks = TrackRegistry(strings)
        self.core = [file.load(CORE_RECORDS) for file in files]
        self.clocks = host_clocks(runs, self.core)
        self.identities: list[Identity] = []
        self.losses: list[tuple[int, LossRow]] = []
        self.ends_ns: list[int] = []
        self._io_losses: dict[int, list[LossRow]] = {}
        self.device_times: list[dict[tuple[int, int], DeviceTime]] = []
        self.group_notes = GroupNotes()
        self._resolved: dict[str, Room | None] = {}
        self._collectors: dict[StashFile, tuple[str, ...]] = {}
        self.reference = ""
        self.origin_monotonic_ns = 0

    @classmethod
    def open(
        cls,
        path: Path | Sequence[Path],
        *,
        run_id: str | None = None,
        strict: bool = False,
        ranks: Collection[int] | None = None,
        strings: StringPool | None = None,
    ) -> Session:
        """Open a run and find out everything but its rows. See ``load_trace`` for the parameters."""
        paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(p) for p in path]
        if not paths:
            raise UsageError("no path given")
        runs = [open_run(p, strict=strict, run_id=run_id) for p in paths]
        files = [file for run in runs for file in run.processes]
        session = cls(runs, files, strings if strings is not None else StringPool(), os.pathsep.join(paths))
        session._prepare(ranks, choose_start(run_id))
        return session

    def _prepare(self, ranks: Collection[int] | None, start: int | None, *, align: bool = True) -> None:
        self._identify(ranks, start, align)
        self._register_threads()
        self._read_device_clocks()

    def __len__(self) -> int:
        return len(self.files)

    def clock_of(self, index: int) -> HostClock:
        """Clock of one process."""
        return self.clocks[domain_of(self.core[index])]

    # Setting up ---------------------------------------------------------------------------------

    def _identify(self, ranks: Collection[int] | None, start: int | None, align: bool) -> None:
        files = enumerate(zip(self.core, self.files, strict=True))
        facts = [process_facts(raw, file, self.clock_of(index)) for index, (raw, file) in files]
        identities = identify(facts, start)
        leader = min(
            (i for i, who in enumerate(identities) if who.role is ProcessRole.RANK),
            key=lambda i: identities[i].rank,
            default=0,
        )
        reference = self.clock_of(leader)
        self.reference = reference.boot_id
        for clock in self.clocks.values():
            clock.refer_to(reference)
            clock.origin_ns = 0
        if align and len({clock.boot_id for clock in self.clocks.values()}) > 1:
            # Another session over the same files looks at what the hosts did together, by first guesses.
            scout = Session(self.runs, self.files, StringPool(), self.path)
            scout._prepare(None, start, align=False)
            self.losses += align_run(scout, self.clocks, self.reference)
        begins = [int(self.clock_of(i)(start_ticks(f.metadata))[0]) for i, f in enumerate(self.files)]
        begins += [
            int(run.run["begin_monotonic_ns"])
            for run in self.runs
            if run.run.get("boot_id") == self.reference and isinstance(run.run.get("begin_monotonic_ns"), int)
        ]
        self.origin_monotonic_ns = min(begins)
        for clock in self.clocks.values():
            clock.origin_ns = self.origin_monotonic_ns
        found = [starts_loss(identities, start, self.runs[0].run_id)]
        if ranks is None:
            found.append(missing_loss(identities, self.files, self.runs, self.path))
        self.losses += [(-1, row) for row in found if row is not None]
        self._choose(identities, facts, ranks)

    def _choose(self, identities: list[Identity], facts: Sequence[ProcessFacts], ranks: Collection[int] | None) -> None:
        """Keep the wanted processes, in the order of the processes table, and number them."""
        there = {i.rank for i in identities if i.role is ProcessRole.RANK}
        if ranks is not None and not set(ranks) <= there:
            raise UsageError(
                f"{self.path} has no rank {', '.join(map(str, sorted(set(ranks) - there)))}",
                hint=f"it has {', '.join(map(str, sorted(there)))}",
            )
        shown, _ = generations(identities)
        kept = [
            i
            for i, who in enumerate(identities)
            if who.generation in (-1, shown) and (ranks is None or who.rank < 0 or who.rank in ranks)
        ]
        role_order = {ProcessRole.RANK: 0, ProcessRole.WORKER: 1, ProcessRole.OTHER: 2, ProcessRole.LAUNCHER: 3}
        kept.sort(
            key=lambda i: (
                identities[i].rank < 0,
                identities[i].rank,
                role_order[identities[i].role],
                identities[i].worker_id,
                facts[i].begin_ns,
                self.files[i].name,
            )
        )
        number = {old: new for new, old in enumerate(kept)}
        for who in identities:
            who.parent = number.get(who.parent, -1)
        self.identities = [identities[i] for i in kept]
        self.files = [self.files[i] for i in kept]
        self.core = [self.core[i] for i in kept]
        self.ends_ns = [0] * len(kept)

    def _register_threads(self) -> None:
        """Tracks of all threads first, so that ids do not depend on which tables are loaded."""
        for process_id, file in enumerate(self.files):
            for tid in file.thread_ids():
                self.tracks.thread(process_id, tid)

    def _read_device_clocks(self) -> None:
        """Once the common clock is known: processes of a host read the clock of a device they share for each other."""
        self.device_times, losses = device.device_times(
            (raw, self.clock_of(index), self.clock_of(index).boot_id) for index, raw in enumerate(self.core)
        )
        self.losses += losses

    # Decoding -----------------------------------------------------------------------------------

    def decode(self, index: int, wanted: frozenset[str] | None) -> EventTables:
        """Tables of one process but ``io`` on the common clock; its rows are read and let go here."""
        file = self.files[index]
        rooms = [room for room in self._rooms(file, wanted) if not _is_streamed(room)]
        early = {"clock_sync", "clock_ping", "string_part"}
        raw = file.load({record for room in rooms for record in room.records} - early)
        context = self._context(index, raw, wanted)
        found: dict[str, list[Table]] = {}
        for room in rooms:
            for name, table in room.decode(raw, context).filled():
                if wanted is None or name in wanted or name in ("losses", "metadata"):
                    found.setdefault(name, []).append(table)
        merge_collectives(found, context, self.group_notes)
        joined = {name: self._placed(Table.concat(TABLES[name], parts), context) for name, parts in found.items()}
        self.losses += [(index, row) for row in context.losses]
        self.ends_ns[index] = self._end_of(index, joined)
        return EventTables(self.strings, joined)

    def _placed(self, table: Table, context: DecodeContext) -> Table:
        """The table with a track for each row; a row whose track was not recorded is still shown."""
        # What was lost is told whatever its number says.
        table = table if table.schema.name == "losses" else _without_impossible(table, context)
        table, count = self.tracks.placed(table)
        if count:
            text = (
                f"{count} rows of {table.schema.name} do not say on what they ran; they are shown on an unknown track"
            )
            context.add_loss("format", "track_unknown", count, text, Severity.ERROR)
        return table

    def io_pieces(self, index: int) -> Iterator[Table]:
        """The ``io`` table of one process in pieces of bounded size, by thread and time."""
        file = self.files[index]
        for room in self._rooms(file, frozenset({"io"})):
            if not _is_streamed(room):
                continue
            context: DecodeContext | None = None
            for raw in pieces(file, room.records):
                if context is None:  # one for all pieces: it keeps what it has looked up
                    context = self._context(index, raw, frozenset({"io"}))
                table = _without_impossible(room.decode(raw, context).io, context)
                if len(table):
                    self.ends_ns[index] = max(self.ends_ns[index], int(table["end_ns"].max()))
                    yield table
            if context is not None:
                self._io_losses[index] = context.losses  # the rows may be read more than once

    def io_rows_count(self) -> int:
        """At most so many rows has ``io``."""
        total = 0
        for file in self.files:
            counts = file.row_counts()
            total += sum(
                counts.get(r, 0)
                for room in self._rooms(file, frozenset({"io"}))
                if _is_streamed(room)
                for r in room.records
            )
        return total

    def _context(self, index: int, raw: RawProcess, wanted: frozenset[str] | None) -> DecodeContext:
        who = self.identities[index]
        identity = ProcessIdentity(
            index,
            int(raw.metadata.get("pid", 0)),
            who.rank,
            who.local_rank,
            who.world_size,
            who.role,
            who.worker_id,
            who.parent,
        )
        return DecodeContext(
            identity,
            tracks=self.tracks,
            texts=raw.strings,
            clock=self.clock_of(index),
            wanted=wanted,
            device_times=self.device_times[index],
        )

    def _rooms(self, file: StashFile, wanted: frozenset[str] | None) -> list[Room]:
        """Rooms that have rows in this file and fill a wanted table."""
        if file not in self._collectors:
            self._collectors[file] = self._collectors_of(file)
        rooms = (self._resolved[name] for name in self._collectors[file])
        return [
            room
            for room in rooms
            if room is not None
            and (wanted is None or room.name == "core" or not room.tables or wanted.intersection(room.tables))
        ]

    def _collectors_of(self, file: StashFile) -> tuple[str, ...]:
        """Collectors that have rows in this file, looked up once; one without decoder is a loss."""
        current, layouts, counts = current_layouts(), file.layouts.values(), file.row_counts()
        filled = (lay.collector for lay in layouts if counts.get(lay.name) and lay.name in current)
        names = tuple(dict.fromkeys(("core", *filled)))
        for name in names:
            if name not in self._resolved:
                self._resolved[name] = resolve(name)
            if self._resolved[name] is None:
                text = f"records of {name} cannot be read by this stashtrace"
                self.losses.append((-1, ("format", "no_decoder", int(Severity.ERROR), 1, text)))
        return names

    def _end_of(self, index: int, tables: dict[str, Table]) -> int:
        """Last sign of life: the latest moment in any of its rows."""
        clock = self.clock_of(index)
        latest = [int(clock(start_ticks(self.files[index].metadata))[0])]
        latest += [
            int(clock(r.rows["ticks"]).max())
            for name, r in self.core[index].records.items()
            if name in ("clock_sync", "metadata", "thread_info") and len(r.rows)
        ]
        for table in tables.values():
            latest += [int(table[n].max()) for n in ("end_ns", "ts_ns", "return_ns") if n in table and len(table)]
        return max(latest)

    # Small tables -------------------------------------------------------------------------------

    def loss_table(self, parts: Sequence[Table]) -> Table:
        """Losses of the run, of reading, and those that decoders found."""
        rows = list(self.losses)
        rows += [(index, row) for index, found in sorted(self._io_losses.items()) for row in found]
        rows += [(index, row) for index, file in enumerate(self.files) for row in file.losses]
        for run in self.runs:
            rows += [(-1, row) for row in run.losses]
        rejected = sum(clock.map.rejected_count for clock in self.clocks.values())
        if rejected:
            text = "some clock readings contradict the others; the host may have been suspended"
            rows.append((-1, ("core", "clock_readings_rejected", int(Severity.ERROR), rejected, text)))
        if any(file.has_ring for file in self.files):
            live = LiveRings.look()
            going = sum(live.holds(file) for file in self.files)
            if going:
                text = f"{going} processes are still recording; load again for the rest"
                rows.append((-1, ("format", "still_recording", int(Severity.INFO), going, text)))
        merged: dict[int, dict[tuple[str, str, int, str], int]] = {}
        for process_id, (collector, reason, severity, count, advice) in rows:
            of_process, key = merged.setdefault(process_id, {}), (collector, reason, severity, advice)
            of_process[key] = of_process.get(key, 0) + count
        tables = list(parts)
        for process_id in sorted(merged):
            own = [(c, r, s, n, a) for (c, r, s, a), n in merged[process_id].items()]
            tables.append(Table(TABLES["losses"], losses_columns(process_id, own, self.strings)))
        return Table.concat(TABLES["losses"], tables)

    def process_table(self) -> Table:
        """The ``processes`` table."""
        code = self.strings.code
        rows = []
        for index, (file, who) in enumerate(zip(self.files, self.identities, strict=True)):
            facts = file.metadata
            begin = int(self.clock_of(index)(start_ticks(facts))[0])
            rows.append(
                (
                    index,
                    code(str(facts.get("host", ""))),
                    code(str(facts.get("boot_id", ""))),
                    code(str(facts.get("netns", ""))),
                    int(facts.get("pid", 0)),
                    who.parent,
                    who.rank,
                    who.local_rank,
                    who.world_size,
                    int(who.role),
                    who.worker_id,
                    code(who.name),
                    begin,
                    max(begin, self.ends_ns[index]),
                )
            )
        return Table.from_rows(TABLES["processes"], rows)

    def alignment_table(self) -> Table:
        """The ``alignment`` table."""
        code = self.strings.code
        return Table.from_rows(
            TABLES["alignment"],
            [
                (code(clock.boot_id), code(self.reference), *clock.worth(), code(clock.method))
                for clock in {clock.boot_id: clock for clock in self.clocks.values()}.values()
            ],
        )

    def metadata_table(self, parts: Sequence[Table]) -> Table:
        """Facts of the run, then those of its processes."""
        reference = next(c for c in self.clocks.values() if c.boot_id == self.reference)
        facts = {
            "origin_monotonic_ns": str(self.origin_monotonic_ns),
            "origin_realtime_ns": str(self.origin_monotonic_ns + reference.realtime_offset_ns),
            "run_id": self.runs[0].run_id,
        }
        for run in self.runs:
            for key, value in run.run.items():
                if key == "parts":  # a launcher of each host, told apart by `stashtrace info`
                    continue
                facts.setdefault(key, " ".join(map(str, value)) if isinstance(value, list) else str(value))
        own = {
            "process_id": np.full(len(facts), -1, dtype=np.int64),
            "key_code": self.strings.codes(facts),
            "value_code": self.strings.codes(facts.values()),
        }
        return Table.concat(TABLES["metadata"], [Table(TABLES["metadata"], own), *parts])


def _without_impossible(table: Table, context: DecodeContext) -> Table:
    """The rows whose numbers can be; the others are counted as lost."""
    table, count = without_impossible(table)
    if count:
        text = f"rows of {table.schema.name} hold numbers that no run has; they are left out"
        context.add_loss("format", "impossible_values", count, text, Severity.DATA_LOSS)
    return table


def _is_streamed(room: Room) -> bool:
    """Only ``io`` grows with what the job does rather than with its steps, so only it is never held twice."""
    return room.tables == ("io",)


def align_run(scout: Session, clocks: Mapping[tuple[str, str], HostClock], reference: str) -> list[tuple[int, LossRow]]:
    """Correct the clocks of a run; what did not fit comes back as rows of ``losses``.

    Parameters
    ----------
    scout : Session
        Of all processes, on first guesses; it is used up.
    clocks : mapping
        Clocks to be corrected, by clock domain.
    reference : str
        Boot id of the host to align to.
    """
    boots = [reference, *sorted({clock.boot_id for clock in clocks.values()} - {reference})]
    number = {boot: i for i, boot in enumerate(boots)}
    host_of = np.array([number[scout.clock_of(i).boot_id] for i in range(len(scout))], dtype=np.int64)
    own_error = np.zeros(len(boots), dtype=np.int64)
    bends = [STRAIGHT] * len(boots)
    for clock in clocks.values():
        own_error[number[clock.boot_id]] = max(own_error[number[clock.boot_id]], clock.map.error_ns)
        bends[number[clock.boot_id]] = max(bends[number[clock.boot_id]], clock.bend(), key=lambda bend: bend.bow_ns)
    parts = [scout.decode(i, NEEDED) for i in range(len(scout))]
    collectives, groups = (
        Table.concat(TABLES[name], [p.table(name) for p in parts]) for name in ("collectives", "groups")
    )
    error_of = {
        (process, int(source)): max((t.error_ns for (_, c), t in times.items() if c == clock), default=0)
        for process, times in enumerate(scout.device_times)
        for source, clock in _DEVICE_CLOCK.items()
    }
    own_clocks = [scout.clock_of(i) for i in range(len(scout))]
    begins = [int(clock(start_ticks(raw.metadata))[0]) for clock, raw in zip(own_clocks, scout.core, strict=True)]
    pings = pings_of(scout.core, own_clocks, host_of, own_error)
    lifes = lifes_of(host_of, begins, scout.ends_ns)
    found = align_tables(collectives, groups, host_of, own_error, lifes, error_of, pings, bends)
    for clock in clocks.values():
        offset = found.offsets.get(number[clock.boot_id])
        if offset is not None:
            at = offset.at_ns + scout.origin_monotonic_ns
            error = int(offset.error_ns.max())
            clock.correct(at, offset.offset_ns, error, offset.touch_error_ns, offset.method)
    names = {scout.clock_of(i).boot_id: str(raw.metadata.get("host", "")) for i, raw in enumerate(scout.core)}
    return [(-1, row) for row in alignment_losses(found, [names.get(boot, boot) for boot in boots])]


# What a process says of itself before its rows are decoded, for ``loading.identity``.


def process_facts(raw: RawProcess, file: StashFile, clock: HostClock) -> ProcessFacts:
    """Facts of one process from its header and its core records."""
    learned: dict[str, str] = {}
    rows = raw.records.get("metadata")
    if rows is not None:
        for row in np.sort(rows.rows, order="ticks", kind="stable"):
            learned[raw.strings.get(int(row["key_id"]), "")] = raw.strings.get(int(row["value_id"]), "")
    threads = raw.records.get("thread_info")
    worker = threads is not None and bool((threads.rows["role_code"] == int(ThreadRole.WORKER)).any())
    counts = file.row_counts()
    if "worker_id" not in learned and counts.get("batch") and not counts.get("phase_span"):
        batches = file.load(("batch",)).records.get("batch")
        if batches is not None and (number := int(batches.rows["worker_id"].max())) >= 0:
            learned["worker_id"] = str(number)
    return ProcessFacts(raw.metadata, int(clock.map(start_ticks(raw.metadata))[0]), learned, counts, worker)
