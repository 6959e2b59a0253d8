"""One record of Darshan's counters as the sums that no call of DXT has. Used by ``darshan``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stashtrace.importers.bounds import counted
from stashtrace.importers.bounds import nanoseconds as as_ns
from stashtrace.model.kinds import IoOp

#: Counters of each module that are opens, reads, writes; the rest have one name in all modules.
_COUNTERS: dict[str, dict[str, tuple[str, ...]]] = {
    "POSIX": {"opens": ("OPENS",), "reads": ("READS",), "writes": ("WRITES",)},
    "STDIO": {"opens": ("OPENS",), "reads": ("READS",), "writes": ("WRITES",)},
    "MPI-IO": {
        "opens": ("INDEP_OPENS", "COLL_OPENS"),
        "reads": ("INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"),
        "writes": ("INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES"),
    },
}


@dataclass(slots=True)
class _Timed:
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Moved:
    """What DXT has of each file, by rank and (rank -1) of all ranks; and what is left without times."""

    by_file: dict[tuple[int, int, IoOp], _Timed] = field(default_factory=lambda: defaultdict(_Timed))
    untimed_count: int = 0
    negative_count: int = 0
    impossible_count: int = 0

    def add(self, record_id: int, rank: int, op: IoOp, count: int, moved_bytes: int, seconds: float) -> None:
        """Calls of DXT on a file."""
        for key in {rank, -1}:
            timed = self.by_file[record_id, key, op]
            timed.count += count
            timed.bytes += moved_bytes
            timed.seconds += seconds

    def of(self, record_id: int, rank: int, op: IoOp) -> _Timed:
        """What DXT has of a record of counters."""
        return self.by_file.get((record_id, rank, op), _Timed())


@dataclass(frozen=True, slots=True)
class Sums:
    """Columns of ``io_totals``, and where the calls lie: (first, last, bytes) of the reads and of the writes."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "opens_count",
        "reads_count",
        "writes_count",
        "read_bytes",
        "write_bytes",
        "read_ns",
        "write_ns",
        "other_ns",
        "consecutive_reads_count",
        "slowest_process_ns",
    )
    opens_count: int
    reads_count: int
    writes_count: int
    read_bytes: int
    write_bytes: int
    read_ns: int
    write_ns: int
    other_ns: int
    consecutive_reads_count: int
    slowest_process_ns: int
    first_s: float
    last_s: float
    hulls: tuple[tuple[float, float, int], tuple[float, float, int]]


def _known(read: Callable[[Any], int], value: Any, moved: Moved) -> int:
    """A counter, or 0 if it is a number that no file and no job can have."""
    try:
        return read(value)
    except (ValueError, OverflowError):
        moved.impossible_count += 1
        return 0


def _seconds(value: Any, moved: Moved) -> float:
    """A time, 0 for one that no job can have; negative ones are told apart by who reads them."""
    return float(value) if _known(as_ns, value, moved) or not value else 0.0


def sums_of(module: str, record: Mapping[str, Any], moved: Moved) -> Sums | None:
    """Counters of one record less what DXT has of it; None if nothing is left."""
    prefix = module.replace("-", "") + "_"
    counters = {n.removeprefix(prefix): _known(counted, v, moved) for n, v in record["counters"].items()}
    times = {n.removeprefix(prefix + "F_"): _seconds(v, moved) for n, v in record["fcounters"].items()}
    names = _COUNTERS[module]

    def count(what: str) -> int:
        total = sum(max(counters.get(name, 0), 0) for name in names[what])
        return _known(counted, total, moved)

    def nanoseconds(name: str, less: float = 0.0) -> int:
        seconds = times.get(name, 0.0)
        if seconds < 0:
            moved.negative_count += 1
            return 0
        return round(max(seconds - less, 0.0) * 1e9)

    record_id, rank = int(record["id"]), int(record["rank"])
    nothing = _Timed()
    read, written = (moved.of(record_id, rank, op) if module == "POSIX" else nothing for op in (IoOp.READ, IoOp.WRITE))
    reads, writes = max(count("reads") - read.count, 0), max(count("writes") - written.count, 0)
    read_bytes = max(counters.get("BYTES_READ", 0) - read.bytes, 0)
    write_bytes = max(counters.get("BYTES_WRITTEN", 0) - written.bytes, 0)
    read_ns = nanoseconds("READ_TIME", read.seconds) if reads else 0
    write_ns = nanoseconds("WRITE_TIME", written.seconds) if writes else 0
    other_ns = nanoseconds("META_TIME")
    if not (count("opens") or reads or writes or other_ns):
        return None
    moved.untimed_count += reads + writes
    stamps = [
        (times.get(f"{call}_START_TIMESTAMP", 0.0), times.get(f"{call}_END_TIMESTAMP", 0.0))
        for call, present in (("OPEN", True), ("READ", reads), ("WRITE", writes), ("CLOSE", True))
        if present
    ]
    firsts = [first for first, _ in stamps if first > 0]
    # A record that DXT has a part of no longer says which of its reads were consecutive.
    consecutive = counters.get("CONSEC_READS", -1) if not read.count else -1
    slowest = nanoseconds("SLOWEST_RANK_TIME") if rank < 0 and times.get("SLOWEST_RANK_TIME", 0.0) > 0 else -1
    return Sums(
        opens_count=count("opens"),
        reads_count=reads,
        writes_count=writes,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        read_ns=read_ns,
        write_ns=write_ns,
        other_ns=other_ns,
        consecutive_reads_count=consecutive,
        slowest_process_ns=slowest,
        first_s=min(firsts, default=0.0),
        last_s=max((last for _, last in stamps), default=0.0),
        hulls=(
            (times.get("READ_START_TIMESTAMP", 0.0), times.get("READ_END_TIMESTAMP", 0.0), read_bytes if reads else 0),
            (
                times.get("WRITE_START_TIMESTAMP", 0.0),
                times.get("WRITE_END_TIMESTAMP", 0.0),
                write_bytes if writes else 0,
            ),
        ),
    )
