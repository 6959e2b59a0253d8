"""Makes a recorded process one of another host: another boot id, a clock that is off and drifts.

    for file in run.glob("*.stash"):
        as_other_boot(file, offset_ns=7 * MS, drift_ppb=80_000)

Ticks stay what they are, so the truth is known: equal ticks are the same moment on every "host".
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from stashtrace.format import codec
from stashtrace.format.container import ByteFile, Codec, pack_head, pack_segment, read_head, scan_segments
from stashtrace.format.project import layout_of

OTHER_BOOT = "07be2b00-0000-0000-0000-000000000002"


class Found(NamedTuple):
    """How far the other host's clock is off, and what is said of it: in the whole run, and from call to call."""

    miss_ns: int
    error_ns: int
    touch_miss_ns: int
    touch_error_ns: int
    method: str


def as_other_boot(
    path: Path,
    *,
    offset_ns: int,
    drift_ppb: int = 0,
    realtime_offset_ns: int | None = None,
    boot_id: str = OTHER_BOOT,
    host: str = "node02",
    wall_step: tuple[int, int] = (0, 0),
) -> None:
    """Rewrite a file in place: its monotonic and real clocks run at another rate from now on, and are off.

    Parameters
    ----------
    offset_ns : int
        Added to CLOCK_MONOTONIC at the start of the process.
    drift_ppb : int
        How much faster both clocks run.
    realtime_offset_ns : int, optional
        Added to CLOCK_REALTIME; ``offset_ns`` if None.
    wall_step : tuple of int
        From this tick on CLOCK_REALTIME was set forward by this number of ns.
    """
    with ByteFile(str(path)) as source:
        head = read_head(source)
        found = scan_segments(source, head.data_offset).segments
        segments = [(s, source.read(s.payload_offset, s.payload_bytes)) for s in found]
    metadata = dict(head.metadata)
    start = int(metadata["start_monotonic_ns"])
    realtime = offset_ns if realtime_offset_ns is None else realtime_offset_ns
    layouts = {layout.record_id: layout for layout in map(layout_of, head.records) if layout is not None}

    def later(monotonic: np.ndarray | int) -> np.ndarray | int:
        return (monotonic - start) * drift_ppb // 10**9

    metadata |= {
        "boot_id": boot_id,
        "host": host,
        "start_monotonic_ns": start + offset_ns,
        "start_realtime_ns": int(metadata["start_realtime_ns"]) + realtime,
    }
    out = [pack_head(head.records, metadata, flags=head.flags)]
    for segment, payload in segments:
        layout = layouts.get(segment.record_id)
        kind = segment.codec
        if layout is not None and layout.name == "clock_sync":
            rows = codec.decode(segment.codec, payload, segment.row_count, layout.dtype).copy()
            passed = later(rows["monotonic_ns"])
            rows["monotonic_ns"] += offset_ns + passed
            rows["realtime_ns"] += realtime + passed + np.where(rows["ticks"] >= wall_step[0], wall_step[1], 0)
            payload, kind = rows.tobytes(), int(Codec.RAW)
        out.append(
            pack_segment(
                payload,
                record_id=segment.record_id,
                codec=kind,
                tid=segment.tid,
                ring_id=segment.ring_id,
                row_count=segment.row_count,
                first_sequence=segment.first_sequence,
            )
        )
    path.write_bytes(b"".join(out))
    path.with_suffix(".ring").unlink(missing_ok=True)


def true_miss_ns(path: Path | list[Path], boot_id: str = OTHER_BOOT) -> Found:
    """How far the two hosts' times of the same ticks are apart in a loaded run."""
    from stashtrace.loading.load import open_processes

    run = open_processes(path)
    by_boot = run.clocks.of_boots()
    here, there = by_boot[run.clocks.reference], by_boot[boot_id]
    ticks = np.concatenate([c.map.ticks[1:-1] for c in (here, there)]).astype(np.uint64)
    calls = [p.file.load(("collective_call", "nccl_call")).records.values() for p in run.processes]
    joint = np.concatenate([records.rows["call_ticks"] for each in calls for records in each])
    misses = []
    for some in (ticks, joint):
        moments = np.linspace(int(some.min()), int(some.max()), 200).astype(np.uint64)
        misses.append(int(np.abs(there(moments) - here(moments)).max()))
    _, _, error, touch = there.worth()
    return Found(misses[0], error, misses[1], touch, there.method)


def rank_of(path: Path) -> int:
    """Rank in the environment of a recorded process, -1 if none."""
    with ByteFile(str(path)) as source:
        rank = (read_head(source).metadata.get("env") or {}).get("RANK", "")
    return int(rank) if str(rank).isdecimal() else -1
