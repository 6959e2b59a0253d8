"""Writes valid .stash and .ring files from numpy rows or tuples, so that tests need no recorder.

    stash = StashWriter(tmp_path, pid=100, env={"RANK": "0"})
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(3), duration_ticks=ms(1), path_id=stash.intern("/a"))])
    stash.save()

Ticks are ns of the monotonic clock unless ``tick_hz`` says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.format import codec
from stashtrace.format.container import pack_head, pack_segment, padded
from stashtrace.format.project import current_layouts
from stashtrace.format.ring import PAGE_BYTES, RING_FILE_HEADER, RING_FILE_MAGIC, RING_HEADER, RING_MAGIC

RUN_ID = "5eed0000000000000000000000000001"
BOOT_ID = "b0070000-0000-0000-0000-000000000001"
#: Monotonic ns at which the written processes start, and REALTIME minus MONOTONIC.
START_NS = 1_000_000_000_000
REALTIME_OFFSET_NS = 1_700_000_000_000_000_000


def ms(milliseconds: float) -> int:
    """Ticks of a moment, in ms after the start."""
    return START_NS + round(milliseconds * 1e6)


@cache
def _schema_records() -> list[dict[str, Any]]:
    """Records of the schema, which are made again each time they are asked for."""
    return list(_native.schema()["records"])


@cache
def _zeros(record: str) -> dict[str, Any]:
    """The fields of a record in their order, as they are where nothing else is said."""
    return {name: b"" if name == "text" else 0 for name in current_layouts()[record].dtype.names or ()}


@cache
def _place(record: str) -> int:
    return sorted(current_layouts()).index(record)


class StashWriter:
    """One process image. Rows are kept in memory until :meth:`save`.

    Parameters
    ----------
    directory : path
        Run directory; made if missing.
    pid, ppid, host, run_id, boot_id, incarnation, env
        Go to the metadata and the file name.
    tick_hz : int
        Rate of the ticks; 10**9 makes them ns.
    metadata : mapping
        More metadata, or other values.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        pid: int = 100,
        ppid: int = 1,
        host: str = "node01",
        run_id: str = RUN_ID,
        boot_id: str = BOOT_ID,
        incarnation: int = 0,
        env: Mapping[str, str] | None = None,
        tick_hz: int = 10**9,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.pid = pid
        self.stem = f"{host}.{pid}.{incarnation}"
        self.schema_records = [dict(r) for r in _schema_records()]
        self.metadata: dict[str, Any] = {
            "run_id": run_id,
            "host": host,
            "boot_id": boot_id,
            "netns": "net:[1]",
            "pid": pid,
            "ppid": ppid,
            "incarnation": incarnation,
            "parent_incarnation": -1,
            "argv": ["python", "train.py"],
            "exe": "/usr/bin/python3",
            "env": dict(env or {}),
            "clock": "tsc",
            "tick_hz": tick_hz,
            "start_ticks": START_NS,
            "start_monotonic_ns": START_NS,
            "start_realtime_ns": START_NS + REALTIME_OFFSET_NS,
            "collectors": [],
            "version": "0.1.0",
            **(metadata or {}),
        }
        self.flags = 0
        self.segments: list[bytes] = []
        self.rings: list[bytes] = []
        self.lost_rows = 0
        self.grow_error = self.write_error = 0
        self._sequences: dict[tuple[str, int], int] = {}
        self._strings: dict[str, int] = {}

    @property
    def path(self) -> Path:
        return self.directory / f"{self.stem}.stash"

    @property
    def ring_path(self) -> Path:
        return self.directory / f"{self.stem}.ring"

    def row(self, record: str, **fields: Any) -> tuple[Any, ...]:
        """One row as a tuple in the order of the schema; fields not given are 0."""
        zeros = _zeros(record)
        if unknown := fields.keys() - zeros.keys():
            raise KeyError(f"{record} has no {sorted(unknown)}")
        return tuple((zeros | fields).values())

    def rows(self, record: str, rows: Sequence[tuple[Any, ...]] | npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        return np.asarray(rows, dtype=current_layouts()[record].dtype)

    def intern(self, text: str) -> int:
        """String id of a text; its parts are written before anything added later."""
        if text in self._strings:
            return self._strings[text]
        string_id = self._strings[text] = len(self._strings) + 1
        data = text.encode()
        parts = [data[i : i + 56] for i in range(0, len(data), 56)] or [b""]
        self.add("string_part", [(string_id, n, len(data), part) for n, part in enumerate(parts)])
        return string_id

    def add(
        self,
        record: str,
        rows: Sequence[tuple[Any, ...]] | npt.NDArray[np.void],
        *,
        tid: int | None = None,
        packed: bool = False,
        gap: int = 0,
    ) -> None:
        """Append one segment. ``gap`` rows before it are missing."""
        array = self.rows(record, rows)
        layout = current_layouts()[record]
        tid = self.pid if tid is None else tid
        key = (record, tid)
        first = self._sequences.get(key, 0) + gap
        self._sequences[key] = first + len(array)
        kind, payload = codec.encode(array) if packed else (codec.Codec.RAW, array.tobytes())
        self.segments.append(
            pack_segment(
                payload,
                record_id=layout.record_id,
                codec=kind,
                tid=tid,
                ring_id=self._ring_id(record, tid),
                row_count=len(array),
                first_sequence=first,
            )
        )

    def add_ring(
        self,
        record: str,
        rows: Sequence[tuple[Any, ...]] | npt.NDArray[np.void],
        *,
        tid: int | None = None,
        capacity: int = 16,
        already_drained: int = 0,
        dropped: int = 0,
        claimed: int | None = None,
    ) -> None:
        """Put rows into a ring of the .ring file; the first ``already_drained`` of them are in a segment too."""
        array = self.rows(record, rows)
        layout = current_layouts()[record]
        tid = self.pid if tid is None else tid
        first = self._sequences.get((record, tid), 0) - already_drained
        committed = first + len(array)
        slots = np.zeros(capacity, dtype=layout.dtype)
        slots[np.arange(first, committed) % capacity] = array
        ring_bytes = -(-(PAGE_BYTES + slots.nbytes) // PAGE_BYTES) * PAGE_BYTES
        header = RING_HEADER.pack(
            RING_MAGIC,
            layout.record_id,
            layout.dtype.itemsize,
            self._ring_id(record, tid),
            capacity,
            ring_bytes,
            tid,
            0,
            committed if claimed is None else claimed,
            committed,
            dropped,
            PAGE_BYTES + sum(map(len, self.rings)),
            first,
        )
        self.rings.append((header.ljust(PAGE_BYTES, b"\0") + slots.tobytes()).ljust(ring_bytes, b"\0"))

    def sync(
        self,
        *milliseconds: float,
        drift_ppb: int = 0,
        offset_ns: int = 0,
        bracket_ticks: int = 40,
        realtime_offset_ns: int = REALTIME_OFFSET_NS,
    ) -> None:
        """clock_sync rows at these moments (of the monotonic clock)."""
        rows = []
        hz = self.metadata["tick_hz"]
        for moment in milliseconds:
            since = ms(moment) - START_NS
            ticks = START_NS + (since + since * drift_ppb // 10**9) * hz // 10**9
            rows.append((ticks, ms(moment) + offset_ns, ms(moment) + offset_ns + realtime_offset_ns, bracket_ticks, 0))
        self.add("clock_sync", rows)

    def save(self) -> Path:
        """Write the .stash, and the .ring if anything was put there."""
        head = pack_head(self.schema_records, self.metadata, flags=self.flags)
        self.path.write_bytes(head + b"".join(self.segments))
        if self.rings or self.lost_rows:
            used = PAGE_BYTES + sum(map(len, self.rings))
            ring = RING_FILE_HEADER.pack(
                RING_FILE_MAGIC, 1, 0, self.pid, used, self.lost_rows, self.grow_error, self.write_error
            ).ljust(PAGE_BYTES, b"\0")
            self.ring_path.write_bytes(ring + b"".join(self.rings))
        return self.path

    def _ring_id(self, record: str, tid: int) -> int:
        return _place(record) + 100 * (tid % 1000)


def write_run_json(directory: str | Path, *, run_id: str = RUN_ID, **more: Any) -> Path:
    """run.json as the launcher leaves it."""
    path = Path(directory) / "run.json"
    run = {
        "format": 1,
        "run_id": run_id,
        "command": ["python", "train.py"],
        "begin_monotonic_ns": START_NS,
        "begin_realtime_ns": START_NS + REALTIME_OFFSET_NS,
        "end_monotonic_ns": START_NS + 10**10,
        "end_realtime_ns": START_NS + 10**10 + REALTIME_OFFSET_NS,
        "host": "node01",
        "boot_id": BOOT_ID,
        "exit_code": 0,
        "signal": 0,
        "collectors": [],
        "stashtrace_version": "0.1.0",
        "launcher_pid": 99,
        **more,
    }
    path.write_text(json.dumps(run))
    return path


def sizes_check() -> bool:
    """Whether a written head is aligned as the format demands; used by the tests of this writer."""
    return len(pack_head([], {})) == padded(len(pack_head([], {})))
