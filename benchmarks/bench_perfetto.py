"""Slices per second of the Perfetto encoder, compared with a loop that writes the same columns as plain varints.

Run ``python benchmarks/bench_perfetto.py``; it needs g++ and a built extension. A million slices on 8 threads, 200
names, 4 arguments (3 integers, 1 text), as in a busy trace. Both are timed in turn in one process, in CPU time of
their one thread, writing to memory; further figures: without arguments, with the threads' slices still unmerged, to a
file, and the whole exporter on a trace of I/O calls, with and without gzip.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np

from stashtrace._native import perfetto
from stashtrace.exporters.registry import export
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import IoOp, ProcessRole, ThreadRole, TrackKind
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

NATIVE = Path(__file__).resolve().parent / "native"
THREADS = 8


def build(folder: Path) -> ctypes.CDLL:
    """Compile the yardstick with the optimisation level of the extension."""
    library = folder / "varint_loop.so"
    subprocess.run(
        ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", library, NATIVE / "varint_loop.cpp"], check=True
    )
    loaded = ctypes.CDLL(str(library))
    loaded.varint_loop.restype = ctypes.c_uint64
    return loaded


class Columns:
    """Slices of 8 threads, merged by time or thread after thread."""

    def __init__(self, count: int, *, merged: bool) -> None:
        random = np.random.default_rng(0)
        per = count // THREADS
        begin = np.cumsum(random.integers(200, 20_000, (THREADS, per)), axis=1)
        gap = np.diff(begin, axis=1, append=begin[:, -1:] + 10_000)
        end = begin + gap * random.integers(1, 100, (THREADS, per)) // 100
        track = np.repeat(np.arange(2, 2 + THREADS), per)
        order = np.lexsort((-end.ravel(), begin.ravel())) if merged else np.arange(THREADS * per)
        self.count = THREADS * per
        self.begin, self.end, self.track = begin.ravel()[order], end.ravel()[order], track[order]
        self.name = random.integers(0, 200, self.count)
        self.numbers = [random.integers(0, 1 << bits, self.count) for bits in (20, 10, 14)]
        self.text = random.integers(0, 8, self.count)
        self.names = perfetto.TextTable([f"kernel_{i:03d}_{'x' * 80}" for i in range(200)])
        self.texts = perfetto.TextTable([f"communicator {i}" for i in range(8)])

    def encode(self, sink: int | Callable[[memoryview], object], *, arguments: bool = True) -> int:
        """Write them; bytes."""
        slices = perfetto.Slices(self.track, self.begin, self.end, self.name, self.names)
        if arguments:
            for i, values in enumerate(self.numbers):
                slices.arg_int(f"argument_{i}", values)
            slices.arg_text("communicator", self.text, self.texts)
        encoder = perfetto.Encoder(sink)
        encoder.slices(1, [slices])
        encoder.flush()
        return encoder.byte_count

    def plain(self, library: ctypes.CDLL) -> int:
        """Write them as plain varints; bytes."""
        columns = [self.track, self.name, *self.numbers, self.text]
        pointers = (ctypes.c_void_p * len(columns))(*(c.ctypes.data for c in columns))
        begin, end = ctypes.c_void_p(self.begin.ctypes.data), ctypes.c_void_p(self.end.ctypes.data)
        written: int = library.varint_loop(
            ctypes.c_size_t(self.count), ctypes.c_size_t(len(columns)), begin, end, pointers
        )
        return written


def io_trace(count: int) -> Trace:
    """One rank, 8 threads, nothing but I/O calls."""
    random = np.random.default_rng(1)
    per = count // THREADS
    begin = np.cumsum(random.integers(2_000, 20_000, (THREADS, per)), axis=1).ravel()
    rows = THREADS * per
    strings = StringPool(f"/data/shard-{i:04d}.tar" for i in range(1000))
    made = {
        "processes": {"rank": [0], "role_code": [ProcessRole.RANK], "pid": [1], "worker_id": [-1]},
        "tracks": {
            "track_id": np.arange(THREADS),
            "kind_code": np.full(THREADS, TrackKind.THREAD),
            "role_code": [ThreadRole.STEP, *[ThreadRole.UNKNOWN] * (THREADS - 1)],
            "native_id": np.arange(THREADS),
        },
        "io": {
            "begin_ns": begin,
            "end_ns": begin + random.integers(500, 2_000, rows),
            "track_id": np.repeat(np.arange(THREADS), per),
            "path_code": random.integers(1, 1001, rows),
            "op_code": np.full(rows, IoOp.PREAD),
            "offset_bytes": random.integers(0, 1 << 30, rows),
            "result_bytes": np.full(rows, 4096),
        },
    }
    tables = {}
    for name, columns in made.items():
        length = len(next(iter(columns.values())))
        zero = np.zeros(length, dtype=np.int64)
        tables[name] = Table(TABLES[name], {c.name: columns.get(c.name, zero) for c in TABLES[name].columns})
    return Trace(strings, tables)


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of the calling process inside."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> int:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    merged, apart = Columns(options.slices, merged=True), Columns(options.slices, merged=False)
    trace = io_trace(options.slices)

    def discard(part: memoryview) -> None:
        """The bytes are in memory by now."""

    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        library = build(folder)

        def to_file() -> None:
            with (folder / "t.pftrace").open("wb") as file:
                merged.encode(file.fileno())

        works: dict[str, Callable[[], object]] = {
            "encoder": lambda: merged.encode(discard),
            "plain_varint_loop": lambda: merged.plain(library),
            "encoder_without_arguments": lambda: merged.encode(discard, arguments=False),
            "encoder_with_merge_of_threads": lambda: apart.encode(discard),
            "encoder_to_file": to_file,
            "export_without_gzip": lambda: export(trace, "perfetto", folder / "e.pftrace"),
            "export_with_gzip": lambda: export(trace, "perfetto", folder / "e.pftrace.gz"),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(options.rounds + 1):
            for name, work in works.items():
                seconds = cpu_seconds(work)
                if turn:  # the first warms caches and pages
                    times[name].append(seconds)
        figures: dict[str, object] = {
            f"{name}_slices_per_s": harness.summary([merged.count / s for s in seconds])
            for name, seconds in times.items()
        }
        ratios = [a / b for a, b in zip(times["encoder"], times["plain_varint_loop"], strict=True)]
        figures["encoder_to_plain_varint_loop_ratio"] = harness.summary(ratios)
        figures["encoder_bytes_per_slice"] = round(merged.encode(discard) / merged.count, 1)
        figures["plain_varint_loop_bytes_per_slice"] = round(merged.plain(library) / merged.count, 1)
        figures["gzip_bytes_per_slice"] = round((folder / "e.pftrace.gz").stat().st_size / merged.count, 1)
        figures["slices_count"] = merged.count
    for name, figure in figures.items():
        print(f"{name:45} {figure['median'] if isinstance(figure, dict) else figure:>15,.4g}")
    if not options.no_write:
        command = " ".join(["python", "benchmarks/bench_perfetto.py", *sys.argv[1:]])
        print("wrote", harness.write_result("perfetto", figures, command=command, modules=("numpy",)).name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
