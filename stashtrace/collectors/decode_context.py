"""The decoder of each collector, and what it is given with the rows: clock, tracks, strings, identity of the process.

The decoder of a collector of ``records.def`` is ``decode(raw, context)`` of the module of its name, which returns
:class:`EventTables`; ``loading.process_identity`` makes one context for each process. A decoder never opens files and
never sees another process. Its times are on the common clock of the run, since ``to_ns`` maps to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import DeviceClock, ProcessRole, Severity, StreamFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import EventTables, LossRow, RawProcess
from stashtrace.schema.tracks import TrackRegistry

Int64 = npt.NDArray[np.int64]
#: Ticks of one process -> ns of the common clock.
TickClock = Callable[[npt.NDArray[np.uint64]], Int64]

#: String ids above this are looked up by search instead of through a flat array.
_FLAT_LIMIT = 1 << 22


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """One clock of a device, mapped to the common clock by ``loading.clocks.device_clock``."""

    #: Device ns, as uint64 bits -> int64 ns of the common clock.
    to_common: TickClock
    #: As in the table ``device_clocks``.
    error_ns: int
    anchors_count: int
    drift_ppb: int
    #: Readings that contradict the others.
    rejected_count: int = 0


@dataclass(frozen=True, slots=True)
class Subgroup:
    """Operations of a communicator that are numbered on their own: ``kind`` says why.

    ``ends`` are the two members between which messages go, in the communicator's numbering; empty for all members.
    """

    group_hash: int
    kind: str
    ends: tuple[int, ...]


class Stream(NamedTuple):
    """A stream that was described; ``flags`` are those of ``StreamFlag``, ``priority`` is CUDA's."""

    track_id: int
    device_index: int
    flags: int
    priority: int


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Who a process is to the job, from ``loading.process_identity``; ``rank`` of a worker is the rank it serves."""

    process_id: int
    pid: int
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    role: ProcessRole = ProcessRole.OTHER
    worker_id: int = -1
    parent_process_id: int = -1


class DecodeContext:
    """Clock, tracks and strings of one process.

    ``identity``: its fields are readable from the context too: ``context.process_id``, ``context.rank``, ...
    ``tracks``: shared by the processes of a trace. ``texts``: string id -> text, of this process
    (``RawProcess.strings``). ``clock``: uint64 ticks -> int64 ns of the common clock. ``wanted``: tables that the
    caller keeps, all if None; a decoder may skip the others. ``device_times``: (device index, DeviceClock) -> its
    clock.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        *,
        tracks: TrackRegistry,
        texts: Mapping[int, str],
        clock: TickClock,
        wanted: frozenset[str] | None = None,
        device_times: Mapping[tuple[int, int], DeviceTime] | None = None,
    ) -> None:
        self.identity = identity
        self.process_id = identity.process_id
        self.pid = identity.pid
        self.rank = identity.rank
        self.registry = tracks
        self.strings = tracks.strings
        self.losses: list[LossRow] = []
        self.wanted = wanted
        self._texts = texts
        self._clock = clock
        self._flat: Int64 | None = None
        self.device_times = device_times or {}
        self.subgroups: dict[int, Subgroup] = {}
        #: Hashes of torch's groups whose only backend is NCCL.
        self.nccl_groups: set[int] = set()

    # Time ---------------------------------------------------------------------------------------

    def to_ns(self, ticks: Any) -> Int64:
        """Ticks (any integer array) -> int64 ns of the common clock."""
        return self._clock(np.asarray(ticks, dtype=np.uint64))

    def to_ns_or_unseen(self, ticks: Any) -> Int64:
        """As :meth:`to_ns`, but 0 ticks, of what was never seen, become -1."""
        array = np.asarray(ticks, dtype=np.uint64)
        return np.where(array == 0, np.int64(-1), self._clock(array))

    def device_ns(self, device_index: Any, clock_code: int, values: Any) -> Int64:
        """Times of a device's clock -> int64 ns of the common clock.

        -1 stays -1. A clock without readings gives -1 too, and a loss. ``device_index`` is one number, or one for each
        value; -1 stands for the only device that has such a clock.
        """
        given = np.ascontiguousarray(values, dtype=np.int64)
        devices = np.broadcast_to(np.asarray(device_index, dtype=np.int64), given.shape)
        out = np.full(given.shape, -1, dtype=np.int64)
        for device in np.unique(devices).tolist():
            chosen = (devices == device) & (given != -1)
            count = int(np.count_nonzero(chosen))
            if not count:
                continue
            time = self._device_time(device, clock_code)
            if time is None:
                clock = DeviceClock(clock_code).name.lower()
                self.add_loss(
                    "cuda",
                    "device_clock_missing",
                    count,
                    f"no reading of the {clock} clock of GPU {device}: its times cannot be placed",
                )
            else:
                out[chosen] = time.to_common(given[chosen].view(np.uint64))
        return out

    def _device_time(self, device_index: int, clock_code: int) -> DeviceTime | None:
        if device_index >= 0:
            return self.device_times.get((device_index, int(clock_code)))
        fitting = [time for (_, code), time in self.device_times.items() if code == clock_code]
        return fitting[0] if len(fitting) == 1 else None

    # Tracks -------------------------------------------------------------------------------------

    def track(self, tid: int) -> int:
        """Track id of a thread of this process."""
        return self.registry.thread(self.process_id, int(tid))

    def tracks(self, tids: npt.NDArray[Any]) -> Int64:
        """Track id of each row's thread. Cheap for rows grouped by thread, as RawRecords are."""
        tids = np.asarray(tids)
        if len(tids) == 0:
            return np.empty(0, dtype=np.int64)
        changes = np.flatnonzero(tids[1:] != tids[:-1]) + 1
        if not len(changes):
            return np.full(len(tids), self.track(tids[0]), dtype=np.int64)
        starts = np.concatenate(([0], changes))
        ids = np.fromiter((self.track(t) for t in tids[starts].tolist()), dtype=np.int64, count=len(starts))
        return np.repeat(ids, np.diff(np.append(starts, len(tids))))

    def caller_tracks(self, tids: npt.NDArray[Any]) -> Int64:
        """Track id of the thread that each row names, for rows in any order; -1 where it names none (0)."""
        return for_each(tids, lambda tid: self.track(tid) if tid else -1)

    def device_track(self, device_index: int) -> int:
        """Track of a device of this process."""
        return self.registry.device(self.process_id, int(device_index), f"GPU {device_index}")

    def stream_track(self, stream_key: int, name: str = "") -> int:
        """Track of a stream of this process; named by :meth:`name_streams` if its description was recorded."""
        return self.registry.stream(self.process_id, int(stream_key), name or f"stream {stream_key:x}")

    def stream_tracks(self, stream_keys: npt.NDArray[Any]) -> Int64:
        """Track id of each row's stream, -1 where the key is 0 (unknown)."""
        return for_each(stream_keys, lambda key: self.stream_track(key) if key else -1)

    def name_streams(self, raw: RawProcess) -> list[Stream]:
        """Make and name the tracks of all streams that ``stream_info`` describes, in the order in which they were seen.

        Every decoder that calls this gets the same. A stream that was described again has the flags of all its
        descriptions.
        """
        rows = raw.rows("stream_info")
        if rows is None:
            return []
        known: dict[int, list[int]] = {}
        for row in np.sort(rows, order="ticks"):
            key = int(row["stream_key"])
            device, priority = int(row["device_index"]), int(row["priority_index"])
            entry = known.setdefault(key, [device, 0, priority, 0])
            entry[1] |= int(row["stream_flags"])
            entry[3] = int(row["name_id"]) or entry[3]
        streams, numbers = [], dict.fromkeys((entry[0] for entry in known.values()), 0)
        for key, (device, flags, priority, name_id) in known.items():
            numbers[device] += 1
            name = self.text(name_id) or _stream_name(numbers[device], flags, priority)
            streams.append(Stream(self.stream_track(key, name), device, flags, priority))
        return streams

    def intervals(self, raw: RawProcess, name: str) -> tuple[npt.NDArray[np.void], dict[str, Any]] | None:
        """Rows of a record sorted by track and begin, None if there are none.

        The second result has their columns ``begin_ns``, ``end_ns``, ``track_id`` and ``process_id``.
        """
        if raw.rows(name) is None:
            return None
        records = raw.records[name]
        begin, track = self.to_ns(records.rows["begin_ticks"]), self.tracks(records.tid)
        order = np.lexsort((begin, track))
        rows = records.rows[order]
        return rows, {
            "begin_ns": begin[order],
            "end_ns": self.to_ns(rows["end_ticks"]),
            "track_id": track[order],
            "process_id": self.process_id,
        }

    def counter_track(self, name: str, unit: str, native_id: int = 0) -> int:
        """Track of a sampled quantity of this process."""
        return self.registry.counter(self.process_id, name, unit, native_id)

    def communicator_track(self, group_hash: int, name: str) -> int:
        """Track of a communicator of this process."""
        return self.registry.communicator(self.process_id, int(group_hash), name)

    # Strings ------------------------------------------------------------------------------------

    def text(self, string_id: int) -> str:
        """Text of a string id of this process; empty if 0 or not recorded."""
        return self._texts.get(int(string_id), "")

    def codes(self, string_ids: Any) -> Int64:
        """String ids of this process -> codes of the trace's pool; 0 or not recorded -> 0 (empty)."""
        ids = np.asarray(string_ids)
        if len(ids) == 0:
            return np.empty(0, dtype=np.int64)
        top = int(ids.max())
        if top >= _FLAT_LIMIT:
            groups = GroupBy(ids)
            return self.strings.codes(map(self.text, groups.values.tolist()))[groups.number]
        if self._flat is None or top >= len(self._flat):
            given = np.fromiter(self._texts, dtype=np.int64, count=len(self._texts))
            texts = list(self._texts.values())
            if len(given) and int(given.max()) > top:
                inside = given <= top
                texts = [text for text, chosen in zip(texts, inside.tolist(), strict=True) if chosen]
                given = given[inside]
            flat = np.zeros(top + 1, dtype=np.int64)
            flat[given] = self.strings.codes(texts)
            self._flat = flat
        return np.asarray(self._flat[ids], dtype=np.int64)

    # Results ------------------------------------------------------------------------------------

    def wants(self, table: str) -> bool:
        """Whether the caller will keep this table."""
        return self.wanted is None or table in self.wanted

    def add_loss(
        self, collector: str, reason: str, lost_count: int, advice: str = "", severity: Severity = Severity.DATA_LOSS
    ) -> None:
        """Report something that the rows show to be missing."""
        self.losses.append((collector, reason, int(severity), int(lost_count), advice))

    def tables(self, **columns: Mapping[str, Any]) -> EventTables:
        """EventTables from columns per table name; a scalar column is repeated to the table's length."""
        return EventTables(self.strings, {name: _table(name, given) for name, given in columns.items()})


def for_each(values: npt.NDArray[Any], function: Callable[[int], int]) -> Int64:
    """``function(value)`` for each row; it is called once for each distinct value, in ascending order."""
    return GroupBy(values).map(function)


def columns_of(rows: npt.NDArray[np.void], *names: str) -> dict[str, npt.NDArray[Any]]:
    """Fields that become columns of the same name; the table converts their type."""
    return {name: rows[name] for name in names}


def _stream_name(number: int, flags: int, priority: int) -> str:
    """Name that distinguishes a stream from the others of its device."""
    words = ["compute"] if flags & StreamFlag.CARRIES_COMPUTE else []
    words.append("default stream" if flags & StreamFlag.LEGACY else f"stream {number}")
    words += ["high priority"] if priority < 0 else []
    return " · ".join(words)


def _table(name: str, columns: Mapping[str, Any]) -> Table:
    schema = TABLES[name]
    whole = {key: values for key, values in columns.items() if isinstance(values, list | np.ndarray) or np.ndim(values)}
    rows = max(map(len, whole.values()), default=1)
    repeated = {k: np.full(rows, v, dtype=schema.dtypes.get(k)) for k, v in columns.items() if k not in whole}
    return Table(schema, {**whole, **repeated})


Decode = Callable[[RawProcess, DecodeContext], EventTables]


@dataclass(frozen=True, slots=True)
class Decoder:
    """One collector's decoder."""

    #: Collector.
    name: str
    #: ``decode(raw, context) -> EventTables``.
    decode: Decode
    #: Record names it reads (``RECORDS`` of its module).
    records: tuple[str, ...]
    #: Tables it fills (``TABLES`` of its module); empty if not declared.
    tables: tuple[str, ...]


def resolve(name: str) -> Decoder | None:
    """Decoder of a collector, None if the schema has none of that name or its module is not there."""
    if name not in {collector["name"] for collector in _native.schema()["collectors"]}:
        return None  # a name out of a file, which may be any
    module_name = f"{__package__}.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            return None
        raise
    return Decoder(name, module.decode, tuple(module.RECORDS), tuple(getattr(module, "TABLES", ())))
