"""What a call of a probe into the recorder costs, and how much more it would be through ctypes: nanoseconds, ratios.

    python benchmarks/bench_probe_calls.py [--pairs 15] [--out FOLDER]

The library makes built-in functions for the interpreter (``csrc/python``); its C interface could be called by ctypes as
well. Both are timed in pairs whose order alternates, by the CPU time of the thread, in a process that is not traced:
what is left is the call.
Needs the standard library alone: another Python is measured by starting this file with it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT))
from stashtrace.probes import native

CALLS = 100_000
ROW = bytes(40)
SPAN = 0x10


def by_ctypes() -> dict[str, Callable[[], object]]:
    """Return the same calls through the C interface, with the GIL kept."""
    library = ctypes.PyDLL(str(harness.ROOT / "stashtrace" / native.LIBRARY))
    now, emit, intern = library.stashtrace_now_ticks, library.stashtrace_emit, library.stashtrace_intern
    now.restype = ctypes.c_uint64
    intern.argtypes, intern.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint32
    emit.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)

    def intern_text() -> object:
        encoded = "forward".encode("utf-8", "surrogateescape")
        return intern(encoded, len(encoded))

    return {"now_ticks": now, "intern": intern_text, "emit": lambda: emit(SPAN, ROW, len(ROW))}


def built_in() -> dict[str, Callable[[], object]]:
    """Return the calls as the probes make them."""
    return {
        "now_ticks": native.now_ticks,
        "intern": lambda: native.intern("forward"),
        "emit": lambda: native.emit(SPAN, ROW),
    }


def main() -> None:
    """Time the pairs and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    ways = {False: built_in(), True: by_ctypes()}
    figures = {}
    for name in ways[False]:
        found: dict[bool, list[float]] = {False: [], True: []}
        for _, through_ctypes in harness.in_pairs(options.pairs):
            seconds = timeit.timeit(ways[through_ctypes][name], timer=time.thread_time, number=CALLS)
            found[through_ctypes].append(seconds / CALLS * 1e9)
        figures[f"{name}_built_in_ns"] = harness.summary(found[False])
        ratios = [theirs / ours for ours, theirs in zip(found[False], found[True], strict=True)]
        figures[f"{name}_ctypes_ratio"] = harness.summary(ratios)
    command = f"python benchmarks/bench_probe_calls.py --pairs {options.pairs}"
    harness.write_result("probe_calls", figures, command=command, folder=options.out)
    print(json.dumps(harness.rounded(figures), indent=2))


if __name__ == "__main__":
    main()
