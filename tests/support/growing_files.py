"""Lets a recorded run grow again, as it grew while it was recorded: files with what had been written by some moment.

    for now_ns in grow(recorded, target, every_ns=2 * S):
        ...  # target holds the rows that had ended by then, and the ring of each process that still lived

Rows that lie in the files of processes come in segments of one look each; a process has a ring without rows, which says
that it has not ended, until its last row.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stashtrace.format.codec import Codec
from stashtrace.format.container import FLAG_MERGED, pack_head, pack_segment
from stashtrace.format.reader import RawRun, open_run
from stashtrace.format.ring import PAGE_BYTES, RING_FILE_HEADER, RING_FILE_MAGIC
from stashtrace.format.stash_file import Chunk, StashFile
from stashtrace.loading.clocks.host_clock import host_clocks

_MOMENTS = ("ticks", "end_ticks", "return_ticks", "call_ticks", "receive_ticks", "after_ticks", "send_ticks")


@dataclass
class _Ring:
    chunk: Chunk
    rows: npt.NDArray[np.void]
    #: When each row was there: no row is written before those that its ring holds already.
    there_ns: npt.NDArray[np.int64]
    written_count: int = 0


def grow(
    recorded: Path, target: Path, every_ns: int, killed: Collection[int] = (), *, by_ticks: bool = False
) -> Iterator[int]:
    """Write more of a run each time, and yield CLOCK_MONOTONIC of that moment; the last time all of it is there.

    ``killed``: ids of processes whose rings stay. ``by_ticks``: ticks are ns and the same moment on all hosts, whatever
    their clocks say.
    """
    run = open_run(recorded)
    target.mkdir(parents=True, exist_ok=True)
    if (recorded / "run.json").exists():
        facts = json.loads((recorded / "run.json").read_text())
        shutil.copy(recorded / "run.json", target / "run.json")
        (target / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if not k.startswith("end_")}))
    files = [
        _File(process, target, rings, process.metadata["pid"] in killed, by_ticks)
        for process, rings in zip(run.processes, _rings(run, by_ticks), strict=True)
    ]
    now, last = min(f.begin_ns for f in files), max(f.end_ns for f in files)
    while now <= last:
        now += every_ns
        for file in files:
            file.write(now)
        yield now


def _rings(run: RawRun, by_ticks: bool) -> Iterator[list[_Ring]]:
    core = [file.load(("clock_sync",)) for file in run.processes]
    clocks = host_clocks(run.path, core)
    for process, raw in zip(run.processes, core, strict=True):
        clock = clocks.of(raw)
        rings: dict[tuple[int, int, int], list[Chunk]] = {}
        for chunk in process.chunks():
            rings.setdefault((chunk.layout.record_id, chunk.tid, chunk.ring_id), []).append(chunk)
        made = []
        for chunks in rings.values():
            rows = np.concatenate([c.rows for c in sorted(chunks, key=lambda c: c.first_sequence)])
            names = rows.dtype.names or ()
            ticks = [rows[name].astype(np.uint64) for name in _MOMENTS if name in names]
            if "duration_ticks" in names:
                ticks.append((rows["begin_ticks"] + rows["duration_ticks"]).astype(np.uint64))
            latest = np.max(ticks, axis=0) if ticks else np.zeros(len(rows), dtype=np.uint64)
            there = (
                (latest.astype(np.int64) if by_ticks else clock(latest))
                if ticks
                else np.zeros(len(rows), dtype=np.int64)
            )
            made.append(_Ring(chunks[0], rows, np.maximum.accumulate(there)))
        yield made


class _File:
    def __init__(self, process: StashFile, target: Path, rings: list[_Ring], killed: bool, by_ticks: bool) -> None:
        self._path = target / f"{process.name}.stash"
        self._ring = target / f"{process.name}.ring"
        self._process = process
        self._rings = rings
        self.begin_ns = int(process.metadata["start_ticks" if by_ticks else "start_monotonic_ns"])
        self.end_ns = max((int(ring.there_ns[-1]) for ring in rings), default=self.begin_ns)
        self._begun = False
        self._killed = killed

    def write(self, now_ns: int) -> None:
        """Append the rows that are there by now."""
        if now_ns < self.begin_ns:
            return
        if not self._begun:
            self._begun = True
            head = self._process.head
            self._path.write_bytes(pack_head(head.records, head.metadata, flags=head.flags & ~FLAG_MERGED))
            header = RING_FILE_HEADER.pack(RING_FILE_MAGIC, 1, 0, self._process.metadata["pid"], PAGE_BYTES, 0, 0, 0)
            self._ring.write_bytes(header.ljust(PAGE_BYTES, b"\0"))
        with open(self._path, "ab") as file:
            for ring in self._rings:
                count = int(np.searchsorted(ring.there_ns, now_ns, side="right"))
                if count > ring.written_count:
                    file.write(_segment(ring, count))
                    ring.written_count = count
        if now_ns >= self.end_ns and not self._killed:
            self._ring.unlink(missing_ok=True)


def _segment(ring: _Ring, count: int) -> bytes:
    rows = ring.rows[ring.written_count : count]
    return pack_segment(
        rows.tobytes(),
        record_id=ring.chunk.layout.record_id,
        codec=Codec.RAW,
        tid=ring.chunk.tid,
        ring_id=ring.chunk.ring_id,
        row_count=len(rows),
        first_sequence=ring.written_count,
    )
