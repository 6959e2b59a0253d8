"""Share the ranks of this host with others, and read theirs: what says of each step who waited for whom.

    RUN/hosts/HOST.PID.N.stash     rows of one rank: its collectives, the parts of its training loop, readings of clocks
    RUN/hosts/HOST.PID.N.ring      without rows: it is there until the rank has ended

Each follower writes files of its ranks and reads those of other hosts; nothing else is needed of the file system
than that one host sees what another one has appended. A file is one of a process with a part of its records, so that
it is read, and its clocks are aligned, as those of the run are. What other hosts have had time to read becomes holes.

A host that reports nothing for a while is left out, so that the steps of this one close without it, and taken in again
when it goes on. Ranks that are missing from the start are awaited for a while, as hosts do not begin together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.errors import FormatError
from stashtrace.files.whole_files import whole_file
from stashtrace.format.codec import encode
from stashtrace.format.container import SEGMENT_HEADER, pack_head, pack_segment, padded
from stashtrace.format.growing import LASTING, GrowingFile, GrowingRun, Holes, Range
from stashtrace.format.project import current_layouts
from stashtrace.format.ring import PAGE_BYTES, RING_FILE_HEADER, RING_FILE_MAGIC
from stashtrace.format.stash_file import PART_BYTES, Chunk, StashFile
from stashtrace.live import times
from stashtrace.live.table import open_own
from stashtrace.loading.clocks.policy import POLICY
from stashtrace.loading.run_tables import OpenedRun, missing_ranks
from stashtrace.record.directory import HOSTS_FOLDER
from stashtrace.record.launchers import launchers
from stashtrace.schema.kinds import BatchPhase, PhaseFlag, ProcessRole, SpanKind
from stashtrace.schema.strings import ranks_of
from stashtrace.schema.trace import LossRow
from stashtrace.text.prose import list_some
from stashtrace.text.units import duration_text, ranks_named

Rows = npt.NDArray[np.void]

#: Records that are shared, in this order: a reader that sees a part of a round sees no step without its collectives.
SHARED = (
    *("metadata", "thread_info", "group", "group_count", "group_peer", "nccl_comm", "device_info", "stream_info"),
    *("clock_ping", "collective_call", "collective_done", "collective_wait", "nccl_call", "nccl_task"),
    *("device_clock", "device_bracket", "span", "instant", "batch", "phase_span", "clock_sync"),
)
_ORDER = {record: place for place, record in enumerate(SHARED)}
_MARKS = (SpanKind.STEP_MARK, SpanKind.STEP)
#: Of these records only some rows belong to the training loop; of collectives, see :class:`_Collectives`.
_WANTED: dict[str, Callable[[Rows], npt.NDArray[np.bool_]]] = {
    "span": lambda rows: np.isin(rows["kind_code"], _MARKS),
    "instant": lambda rows: np.isin(rows["kind_code"], _MARKS),
    "batch": lambda rows: rows["phase_code"] == BatchPhase.WAIT,
    "phase_span": lambda rows: (rows["phase_flags"] & PhaseFlag.BACKGROUND) == 0,
}
_OF_COLLECTIVES = ("group", "collective_call", "collective_done", "collective_wait")
_CLOCK_RING = 0xFFFF_FFFF


@cache
def string_fields(record: str) -> tuple[str, ...]:
    """Return the fields of a record that hold the number of a text."""
    [entry] = (one for one in _native.schema()["records"] if one["name"] == record)
    return tuple(one["name"] for one in entry["fields"] if one["doc"].startswith("string id"))


@dataclass(slots=True)
class _Collectives:
    """Which rows of collectives other hosts need: not those of groups inside this host, nor waits for ended ones."""

    #: Ranks of this host.
    ranks: frozenset[int]
    #: Groups all of whose members are of this host.
    _inside: set[int] = field(default_factory=set)
    #: Collectives that are not shared and may have further rows; those whose end was shared in this round or the last.
    _skipped: set[int] = field(default_factory=set)
    _ended: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    def next_round(self) -> None:
        """Forget which collectives ended before the last round."""
        self._skipped -= self._ended[0]
        self._ended = self._ended[1], set()

    def wanted(self, record: str, rows: Rows, texts: Mapping[int, str]) -> Rows:
        """Return the rows that are shared; ``texts``: of the process."""
        if record == "group":
            for group, number in zip(rows["group_hash"].tolist(), rows["members_id"].tolist(), strict=True):
                members = ranks_of(texts.get(number, ""))
                if members and self.ranks.issuperset(members):
                    self._inside.add(group)
        elif record == "collective_call":
            inside = np.isin(rows["group_hash"], np.array(sorted(self._inside), dtype=np.uint64))
            self._skipped.update(rows["collective_id"][inside].tolist())
            return rows[~inside]
        elif record == "collective_done":
            skipped = np.isin(rows["collective_id"], list(self._skipped))
            self._ended[1].update(rows["collective_id"][rows["end_ticks"] > 0].tolist())
            return rows[~skipped]
        elif record == "collective_wait":
            known = [*self._ended[0], *self._ended[1], *self._skipped]
            return rows[~np.isin(rows["collective_id"], known)]
        return rows


@dataclass(slots=True)
class _SharedRank:
    """The file in which other hosts read of one rank."""

    path: Path
    source: GrowingFile
    collectives: _Collectives
    #: Next row of each ring that has not been shared.
    _next: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    #: Rows written, by record and ring.
    _written: dict[tuple[int, int], int] = field(default_factory=dict)
    _texts: set[int] = field(default_factory=set)
    _size_bytes: int = 0
    _holes: Holes = field(default_factory=Holes)
    #: Processes of which the first reading of the clocks was shared.
    _begun: set[str] = field(default_factory=set)

    @property
    def _own_tid(self) -> int:
        """The first thread of the rank."""
        return int(self.source.metadata.get("pid", 0))

    def begin(self) -> None:
        """Write the head, and the ring that says that the rank has not ended."""
        head = self.source.head
        wanted = {*SHARED, "string_part"}
        records = [one for one in head.records if isinstance(one, dict) and one.get("name") in wanted]
        data = pack_head(records, head.metadata)
        ring = RING_FILE_HEADER.pack(RING_FILE_MAGIC, 1, 0, int(head.metadata.get("pid", 0)), PAGE_BYTES, 0, 0, 0)
        with whole_file(self.path.with_suffix(".ring")) as partial:
            partial.write_bytes(ring.ljust(PAGE_BYTES, b"\0"))
        with whole_file(self.path) as partial:
            partial.write_bytes(data)
        self._size_bytes = len(data)

    def write(self, clocks_of: Iterable[StashFile], at_ns: int) -> int:
        """Append what is new; return how many bytes.

        ``clocks_of``: processes of this host whose readings of the clocks are shared here, too. Raises OSError if the
        system refuses.
        """
        parts: list[bytes] = []
        self.collectives.next_round()
        for chunk in sorted(self.source.chunks(_ORDER), key=lambda chunk: _ORDER[chunk.layout.name]):
            self._add(parts, self.source, chunk, chunk.ring_id, at_ns)
        for file in clocks_of:
            for chunk in file.chunks(("clock_sync",)):
                self._add(parts, file, chunk, _CLOCK_RING, at_ns)
        for file in (self.source, *clocks_of):
            self._share_begin(parts, file, at_ns)
        data = b"".join(parts)
        if data:
            try:
                with open(self.path, "ab", opener=open_own) as target:
                    if target.tell() + len(data) != self._size_bytes:  # a part of an earlier round is missing
                        self._holes, self._size_bytes = Holes(), target.tell() + len(data)
                    target.write(data)
            except OSError:
                self._holes, self._size_bytes = Holes(), -1
                raise
        return len(data)

    def _add(self, parts: list[bytes], file: StashFile, chunk: Chunk, ring_id: int, at_ns: int) -> None:
        """Add the new rows of a chunk, behind the texts that they name."""
        record = chunk.layout.name
        key = (file.name, chunk.layout.record_id, chunk.tid, chunk.ring_id)
        shared, end = self._next.get(key, 0), chunk.first_sequence + len(chunk.rows)
        if end <= shared:
            return
        rows = chunk.rows[max(0, shared - chunk.first_sequence) :]
        self._next[key] = end
        if record in _WANTED and len(rows):
            rows = rows[_WANTED[record](rows)]
        elif record in _OF_COLLECTIVES and len(rows):
            rows = self.collectives.wanted(record, rows, file.texts())
        if not len(rows):
            return
        if file is self.source:
            self._add_texts(parts, record, rows, chunk.tid, at_ns)
        tid = chunk.tid if file is self.source else self._own_tid
        self._pack(parts, record, chunk.layout.record_id, rows, tid, ring_id, at_ns)

    def _add_texts(self, parts: list[bytes], record: str, rows: Rows, tid: int, at_ns: int) -> None:
        names = (name for name in string_fields(record) if name in (rows.dtype.names or ()))
        named = {number for name in names for number in rows[name].tolist()}
        new = sorted(named - self._texts - {0})
        if not new:
            return
        texts, layout = self.source.texts(), current_layouts()["string_part"]
        made = []
        for number in new:
            if number in texts:  # else its parts are not all there yet: the next row that names it shares it
                data = texts[number].encode()
                pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)] or [b""]
                made += [(number, part, len(data), piece) for part, piece in enumerate(pieces)]
                self._texts.add(number)
        if made:
            self._pack(parts, "string_part", layout.record_id, np.array(made, dtype=layout.dtype), tid, 0, at_ns)

    def _share_begin(self, parts: list[bytes], file: StashFile, at_ns: int) -> None:
        """Share the readings in the head of another process as a row, as its head is not shared."""
        if file is self.source or file.name in self._begun:
            return
        self._begun.add(file.name)
        layout, facts = current_layouts()["clock_sync"], file.metadata
        bracket = int(2 * POLICY.unbracketed_ns * float(facts.get("tick_hz") or 1e9) / 1e9)
        values = [facts.get(name) for name in ("start_ticks", "start_monotonic_ns", "start_realtime_ns")]
        if all(isinstance(value, int) and value > 0 for value in values):
            row = np.array([(*values, bracket, 0)], dtype=layout.dtype)
            self._pack(parts, "clock_sync", layout.record_id, row, self._own_tid, _CLOCK_RING, at_ns)

    def _pack(
        self, parts: list[bytes], record: str, record_id: int, rows: Rows, tid: int, ring_id: int, at_ns: int
    ) -> None:
        codec, payload = encode(rows)
        first = self._written.get((record_id, ring_id), 0)
        self._written[record_id, ring_id] = first + len(rows)
        segment = pack_segment(
            payload,
            record_id=record_id,
            codec=codec,
            tid=tid,
            ring_id=ring_id,
            row_count=len(rows),
            first_sequence=first,
        )
        begin, end = self._size_bytes, self._size_bytes + SEGMENT_HEADER.size + padded(len(payload))
        self._size_bytes = end
        if record not in LASTING:
            self._holes.release(Range(begin, end, len(rows), at_ns, (begin,)))
        parts.append(segment)

    def drop(self, before_ns: int) -> None:
        """Give the space of rows that were shared before a time back. Raises OSError if the file system cannot."""
        self._holes.punch(str(self.path), before_ns)

    def end(self) -> None:
        """Say that the rank has ended."""
        self.path.with_suffix(".ring").unlink(missing_ok=True)


class Share:
    """What this host shares of its ranks. ``directory``: of the run."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / HOSTS_FOLDER
        self._ranks: dict[str, _SharedRank] = {}
        #: What was shared so far.
        self.bytes_count = 0
        self._has_holes = True

    def write(self, ranks: Mapping[int, GrowingFile], others: Iterable[StashFile], at_ns: int) -> None:
        """Share what is new.

        ``ranks``: rank of this host -> its file. ``others``: of its other processes: their readings of the clocks are
        shared with the first rank. ``at_ns``: the time now. Raises OSError if the system refuses.
        """
        self._folder.mkdir(exist_ok=True)
        for number, file in enumerate(ranks.values()):
            shared = self._ranks.get(file.name)
            if shared is None:
                path = self._folder / f"{file.name}.stash"
                shared = _SharedRank(path, file, _Collectives(frozenset(ranks)))
                shared.begin()
                self._ranks[file.name] = shared
            self.bytes_count += shared.write([] if number else list(others), at_ns)
            if not file.is_open:
                shared.end()
        for name in self._ranks.keys() - {
            file.name for file in ranks.values()
        }:  # of an earlier start of an elastic job
            self._ranks.pop(name).end()
        if self._has_holes:
            try:
                for shared in self._ranks.values():
                    shared.drop(at_ns - times.READ_WITHIN_NS)
            except OSError:  # then the files grow, as those of the run do
                self._has_holes = False

    def end(self) -> None:
        """Say that no more comes of this host. Raises OSError if the system refuses."""
        for shared in self._ranks.values():
            shared.end()


#: Each costs some milliseconds a round: of more ranks none is taken in, as some alone would name wrong causes.
MOST_RANKS = 128
_NAMED = 3


def other_launchers(directory: Path, host: str) -> list[str]:
    """Return the other hosts whose launchers record into a directory."""
    hosts = {str(facts.get("host", "")) for facts in launchers(directory)}
    return sorted(hosts - {host, ""})


class OtherHosts:
    """Ranks of other hosts. ``directory``: of the run. ``host``: name of this one. ``run_id``: of the run."""

    def __init__(self, directory: Path, host: str, run_id: str) -> None:
        def is_theirs(metadata: Mapping[str, Any]) -> bool:
            return metadata.get("host") != host and metadata.get("run_id") == run_id

        self._directory, self._host = directory, host
        self._run = GrowingRun(str(directory / HOSTS_FOLDER), is_theirs)
        #: Hosts that have reported nothing for a while -> when they last did.
        self._silent: dict[str, int] = {}
        self._taken: list[GrowingFile] = []
        #: Ranks that are missing, and of how many; since when the others have been awaited.
        self._missing: list[int] = []
        self._present: list[int] = []
        self._world = -1
        self._begin_ns = self._now_ns = 0
        self._start = -1
        self._known: set[int] = set()
        self._launchers: list[str] = []
        #: The number of ranks that other hosts report, if it is too large; else 0.
        self._too_many = 0
        self._clock_losses: list[LossRow] = []
        #: Ranks that other hosts report and that record.
        self._spoken_for: set[int] = set()
        #: Why nothing can be read of what others report.
        self._error = ""

    def launchers(self) -> list[str]:
        """Return the other hosts whose launchers record into the same directory."""
        return other_launchers(self._directory, self._host)

    @property
    def held_bytes(self) -> int:
        """Size of the rows in memory."""
        return self._run.held_bytes

    @property
    def is_incomplete(self) -> bool:
        """Whether ranks of hosts that record into the same directory were missing in the last round."""
        return bool(self._missing) and bool(self._launchers)

    def round(self, at_ns: int) -> list[StashFile]:
        """Read what is new since the last round; return the ranks of the hosts that report; ``at_ns``: now."""
        self._now_ns, self._error = at_ns, ""
        if not (self._directory / HOSTS_FOLDER).is_dir():
            return []
        try:
            self._run.take_in(at_ns)
        except FormatError as error:  # what this host sees itself does not depend on it
            self._error, self._taken = str(error), []
            return []
        newest: dict[str, int] = {}
        for file in self._run.files:
            if file.is_open:
                host = str(file.metadata.get("host", ""))
                newest[host] = max(newest.get(host, 0), file.newest_ns)
        self._silent = {host: seen for host, seen in newest.items() if at_ns - seen > times.SILENT_NS}
        self._taken = [file for file in self._run.files if str(file.metadata.get("host", "")) not in self._silent]
        count = len(self.recording())
        self._too_many = count if count > MOST_RANKS else 0
        if self._too_many:
            self._run.forget(at_ns, ())
            self._taken = []
        return list(self._taken)

    def recording(self) -> list[GrowingFile]:
        """Return the ranks that had not ended in the last round, without those of silent hosts."""
        return [file for file in self._taken if file.is_open]

    def is_recording(self, file: StashFile) -> bool:
        """Whether a file is one of :meth:`recording`."""
        return any(file is one for one in self.recording())

    def awaited(self, opened: OpenedRun, at_ns: int) -> bool:
        """Return whether ranks may still come without which no step can close; ``at_ns``: now."""
        self._present, self._missing, self._world = missing_ranks([p.identity for p in opened.everyone])
        self._clock_losses = opened.clock_losses
        if opened.start != self._start:
            self._start, self._begin_ns, self._known = opened.start, at_ns, set()
        self._spoken_for = {
            p.identity.rank
            for p in opened.everyone
            if p.identity.role is ProcessRole.RANK and self.is_recording(p.file)
        }
        self._known |= {p.identity.rank for p in opened.everyone if p.identity.role is ProcessRole.RANK}
        if not self._missing:
            return False
        self._launchers = self.launchers()
        unseen = set(self._missing) - self._known
        if self._too_many:
            return False
        return bool(unseen) and bool(self._launchers) and at_ns - self._begin_ns < times.SILENT_NS

    def spoken_for(self, at_ns: int) -> set[int]:
        """Return the ranks about which their hosts say whether they are stuck; ``at_ns``: now.

        What is known of them here is some seconds old, and their processes cannot be examined. Ranks of which nothing
        is known yet are awaited.
        """
        awaited = self._launchers and not self._too_many and at_ns - self._begin_ns < times.SILENT_NS
        return self._spoken_for | (set(self._missing) - self._known if awaited else set())

    @property
    def known(self) -> Collection[int]:
        """Return the ranks of which something was known at any time, those of this host among them."""
        return self._known

    def forget(self, before_ns: int, keep: Collection[str]) -> None:
        """Let go of rows as ``GrowingRun.forget`` does."""
        self._run.forget(before_ns, keep)

    def lacking(self, except_of: Collection[str] = ()) -> str:
        """Say which ranks this host knows nothing of, and why; empty if there are none.

        ``except_of``: hosts of which it is said already that their ranks are missing.
        """
        unseen = sorted(set(self._missing) - self._known)
        if not unseen or self._too_many:
            return ""
        if not self._launchers:
            return f"{ranks_named(unseen)} of {self._world} (other hosts do not record into {self._directory})"
        silent = [host for host in self._launchers if host not in except_of]
        return f"{ranks_named(unseen)} of {self._world} ({list_some(silent, _NAMED)} without --live)" if silent else ""

    def notes(self) -> list[str]:
        """Say what this host cannot know, in a sentence each."""
        notes = [
            f"{host} has reported nothing of its ranks for {duration_text(self._now_ns - seen)}: "
            "steps close without them, and waits for them have no cause"
            for host, seen in sorted(self._silent.items())
        ]
        notes += [self._error] if self._error else []
        unseen = sorted(set(self._missing) - self._known)
        if self._too_many:
            notes.append(
                f"other hosts report {self._too_many} ranks, and a follower reads {MOST_RANKS} at most: "
                "waits for them have no cause"
            )
        elif unseen and self._launchers:
            who = list_some(self._launchers, _NAMED)
            notes.append(
                f"nothing is known of {ranks_named(unseen)} of {self._world}, which may run on {who} without --live: "
                "waits for them have no cause"
            )
        elif unseen:
            notes.append(
                f"this host sees {ranks_named(self._present)} of {self._world}: other hosts do not record into "
                f"{self._directory}, so it cannot say for which of their ranks the ranks of this host wait"
            )
        return notes + [text for _, reason, _, _, text in self._clock_losses if reason == "clock_stepped"]
