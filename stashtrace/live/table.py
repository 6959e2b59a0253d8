"""Closed steps of a live run: one row for each step of each rank, in a file of the run directory, and their sums.

    live-HOST.rows     head | rows of one round | rows of the next round | ...

The file is framed and packed as those of the recorder are (``format.container``), but holds no process: it names its
columns itself, each batch of rows has a checksum, and a torn end is left out.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS, STEP_TIMES, step_times
from stashtrace.analysis.steps.step_time import KINDS
from stashtrace.errors import FormatError
from stashtrace.files.whole_files import whole_file
from stashtrace.format.codec import decode, encode
from stashtrace.format.container import SEGMENT_HEADER, ByteFile, pack_head, pack_segment, read_head, scan_segments
from stashtrace.format.project import FIELD_DTYPES, layouts
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table

LIVE_STEPS = schema(
    "live_steps",
    "Where the time of each step went, as it was known when the step closed; the kinds of a step sum to its length",
    *STEP_TIMES.columns,
    col.number("start", "start of an elastic job that made the step, 0 otherwise"),
    col.ns("cause_ns", "part of straggler_ns that waited for it"),
    col.number("complete", "0 if the step lacks rows: memory did not suffice, or another host reported nothing"),
)
_RECORD_ID, _VERSION = 1, 1
_NAME = "live-{host}.rows"


def wide_rows(stalls: Table, steps: Table, *, start: int, complete: npt.NDArray[np.bool_]) -> Table:
    """Return rows of ``live_steps``, one for each row of ``steps``.

    ``stalls``: rows of ``stalls`` by step of these steps, maybe among others. ``complete``: of each row of ``steps``.
    """
    times = step_times(steps, stalls)
    columns: dict[str, npt.NDArray[Any]] = {name: times[name] for name in times.schema.names}
    columns["start"] = np.full(len(steps), start)
    columns["complete"] = complete.astype(np.int64)
    columns["cause_ns"] = np.zeros(len(steps), dtype=np.int64)
    waits = stalls.take((stalls["kind"] == StallKind.STRAGGLER.name.lower()) & (stalls["cause_rank"] >= 0))
    row = GroupBy(steps["rank"], steps["step"]).row_of(waits["rank"], waits["step"])
    part = np.rint(waits["cause_share_ratio"] * waits["stall_ns"]).astype(np.int64)
    columns["cause_ns"][row[row >= 0]] = part[row >= 0]
    return Table(LIVE_STEPS, columns)


class LiveFile:
    """The file that the steps of one host are appended to.

    ``most_bytes``: where it gets larger, the earlier half of its rows goes; 0 for no limit.
    """

    def __init__(
        self, directory: str | os.PathLike[str], host: str, metadata: Mapping[str, Any], most_bytes: int = 0
    ) -> None:
        self.path = Path(directory) / _NAME.format(host=host)
        self.most_bytes = most_bytes
        #: Rows that went for want of room.
        self.dropped_rows_count = 0
        types = {name: "u16" if name == "step_kind" else "i64" for name in LIVE_STEPS.names}
        self._dtype = np.dtype([(name, FIELD_DTYPES[kind]) for name, kind in types.items()])
        self._rows_count = 0
        sizes = [np.dtype(FIELD_DTYPES[kind]).itemsize for kind in types.values()]
        fields = [
            {"name": name, "type": kind, "offset": sum(sizes[:at])} for at, (name, kind) in enumerate(types.items())
        ]
        record = {
            "name": LIVE_STEPS.name,
            "collector": "live",
            "id": _RECORD_ID,
            "version": _VERSION,
            "row_bytes": self._dtype.itemsize,
            "fields": fields,
        }
        with whole_file(self.path) as partial:
            partial.write_bytes(pack_head([record], {**metadata, "host": host, "step_kinds": list(KINDS)}))

    def append(self, rows: Table) -> None:
        """Append rows of ``live_steps``.

        Raises OSError if the system refuses; what was written so far stays readable.
        """
        if not len(rows):
            return
        packed = np.empty(len(rows), dtype=self._dtype)
        for name in LIVE_STEPS.names:
            packed[name] = _kind_codes(rows[name]) if name == "step_kind" else rows[name]
        codec, payload = encode(packed)
        segment = pack_segment(
            payload,
            record_id=_RECORD_ID,
            codec=codec,
            tid=0,
            ring_id=0,
            row_count=len(packed),
            first_sequence=self._rows_count,
        )
        with open(self.path, "ab", opener=open_own) as file:
            file.write(segment)
            size_bytes = file.tell()
        self._rows_count += len(packed)
        if self.most_bytes and size_bytes > self.most_bytes:
            self._drop_half()

    def _drop_half(self) -> None:
        with ByteFile(str(self.path)) as source:
            begin = read_head(source).data_offset
            segments = scan_segments(source, begin).segments
            middle = begin + (source.size - begin) // 2
            kept = next((s for s in segments if s.payload_offset > middle), segments[-1])
            kept_offset = kept.payload_offset - SEGMENT_HEADER.size
            content = source.read(0, begin) + source.read(kept_offset, source.size - kept_offset)
        with whole_file(self.path) as partial:
            partial.write_bytes(content)
        self.dropped_rows_count = kept.first_sequence


def open_own(path: str, flags: int) -> int:
    """Open a file of ours in a run directory: a link that somebody else put there is not followed.

    Raises OSError as ``os.open`` does.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def _kind_codes(words: npt.NDArray[np.str_]) -> npt.NDArray[np.int64]:
    return np.select([words == word for word in KINDS], range(len(KINDS)))


def live_files(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the files of live steps in a run directory, one for each host."""
    return sorted(Path(directory).glob(_NAME.format(host="*")))


def read_live(directory: str | os.PathLike[str]) -> Table:
    """Return the closed steps of all hosts of a run, by step and rank; none if nobody followed it.

    Raises FormatError if a file is none of ours or was written by a newer stashtrace.
    """
    parts = [_read(path) for path in live_files(directory)]
    return Table.concat(LIVE_STEPS, parts).sort_by("start", "step", "rank")


def _read(path: Path) -> Table:
    with ByteFile(str(path)) as source:
        head = read_head(source)
        layout = layouts(head.records).get(_RECORD_ID)
        words = np.array(head.metadata.get("step_kinds", KINDS), dtype="U16")
        if layout is None or layout.version > _VERSION:
            raise FormatError(f"{path} holds no steps that this stashtrace reads")
        parts = []
        for segment in scan_segments(source, head.data_offset).segments:
            payload = source.read(segment.payload_offset, segment.payload_bytes)
            if zlib.crc32(payload) == segment.payload_crc32:
                parts.append(decode(segment.codec, payload, segment.row_count, layout.dtype))
    rows = np.concatenate(parts) if parts else np.empty(0, dtype=layout.dtype)
    names = rows.dtype.names or ()
    columns: dict[str, npt.NDArray[Any]] = {
        column.name: rows[column.name].astype(np.int64)
        if column.name in names
        else np.full(len(rows), column.missing, dtype=np.int64)
        for column in LIVE_STEPS.columns
    }
    columns["step_kind"] = words[np.minimum(columns["step_kind"], len(words) - 1)]
    return Table(LIVE_STEPS, columns)


#: Upper bounds of the histogram of step lengths, in seconds; the last bucket has none.
STEP_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Number of the newest steps of each rank that are listed.
NEWEST_STEPS = 30
#: They are compared with this many steps before them.
EARLIER_STEPS = 300


@dataclass(slots=True)
class RankTotals:
    """Sums over the closed steps of one rank."""

    steps_count: int = 0
    wall_ns: int = 0
    #: Time of each kind.
    stall_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KIND_COLUMNS, 0))
    #: Waits of other ranks of which this one was the longest cause.
    caused_wait_ns: int = 0
    #: Steps by length: one count for each bound of :data:`STEP_BOUNDS_S`, and one for the longer ones.
    lengths_count: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_S) + 1))
    #: The last step that closed and its end on the common clock; -1 before the first.
    last_step: int = -1
    last_end_ns: int = -1
    #: Length and time of each kind of the newest steps, the last one at the end.
    newest: deque[tuple[int, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    #: Lengths of the newest steps and of those before them.
    lengths_ns: deque[int] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS + EARLIER_STEPS))

    def earlier_ns(self) -> list[int]:
        """Return the lengths of the steps before the newest ones."""
        return list(self.lengths_ns)[: -len(self.newest) or None]


@dataclass(slots=True)
class LiveTotals:
    """Sums over the closed steps of a run."""

    ranks: dict[int, RankTotals] = field(default_factory=dict)

    def add(self, closed: Table) -> None:
        """Add rows of ``live_steps``."""
        bounds_ns = np.array(STEP_BOUNDS_S) * 1e9
        for rank, rows in GroupBy(closed["rank"]).items():
            totals = self._totals(rank)
            part = closed.take(rows).sort_by("step")
            lengths = part["end_ns"] - part["begin_ns"]
            totals.steps_count += len(part)
            totals.wall_ns += int(lengths.sum())
            totals.lengths_ns.extend(lengths.tolist())
            for at in np.searchsorted(bounds_ns, lengths).tolist():
                totals.lengths_count[at] += 1
            for kind, column in KIND_COLUMNS.items():
                totals.stall_ns[kind] += int(part[column].sum())
            for row in part.take(np.arange(max(0, len(part) - NEWEST_STEPS), len(part))).rows():
                spent = {kind: row[column] for kind, column in KIND_COLUMNS.items()}
                totals.newest.append((row["end_ns"] - row["begin_ns"], spent))
            totals.last_step, totals.last_end_ns = int(part["step"][-1]), int(part["end_ns"][-1])
        for rank, rows in GroupBy(closed["cause_rank"]).items():
            if rank >= 0:
                self._totals(rank).caused_wait_ns += int(closed["cause_ns"][rows].sum())

    def _totals(self, rank: int) -> RankTotals:
        return self.ranks.setdefault(rank, RankTotals())


class GrowingSum:
    """The sum of counters of which some go away, because the rows of a process that has ended were let go."""

    def __init__(self) -> None:
        self._values: dict[Hashable, int] = {}
        #: Of counters that have gone; a process that was let go does not come back.
        self._gone = 0

    def update(self, values: Mapping[Hashable, int]) -> int:
        """Take the counters that are there now, each by its key; return the sum over all that ever were."""
        self._gone += sum(value for key, value in self._values.items() if key not in values)
        self._values = {key: max(value, self._values.get(key, 0)) for key, value in values.items()}
        return self._gone + sum(self._values.values())
