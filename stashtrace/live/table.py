"""The table of a live run: one row for each closed step of each rank, appended to a file in the run directory.

    live-HOST.rows     head | rows of one round | rows of the next round | ...

The file is framed and packed as those of the recorder are (``format.container``), but holds no process: it names its
columns itself, each batch of rows has a checksum, and a torn end is left out.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.spikes.step_times import STEP_TIMES, step_times
from stashtrace.analysis.steps.step_time import KINDS
from stashtrace.errors import FormatError
from stashtrace.format.codec import decode, encode
from stashtrace.format.container import (
    SEGMENT_HEADER,
    ByteFile,
    pack_head,
    pack_segment,
    read_head,
    scan_segments,
)
from stashtrace.format.project import FIELD_DTYPES, layouts
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.whole_files import whole_file

LIVE_STEPS = schema(
    "live_steps",
    "Where the time of each step went, as it was known when the step closed; the kinds of a step sum to its length",
    *STEP_TIMES.columns,
    col.number("start", "start of an elastic job that made the step, 0 otherwise"),
    col.ns("cause_ns", "part of straggler_ns that waited for it"),
    col.number("complete", "0 if the step lacks rows: memory did not suffice, or ranks of another host told nothing"),
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
