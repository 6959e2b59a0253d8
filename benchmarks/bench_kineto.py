"""Kineto import, breakdown and overlap of GPUs compared with Holistic Trace Analysis, on the same file in one run.

Run ``python benchmarks/bench_kineto.py FILE... --hta PYTHON`` where PYTHON is an interpreter that has
HolisticTraceAnalysis (a separate virtual environment: it brings pandas and Jupyter). Each repetition is a fresh
process bound to one core, ours and theirs in turn; CPU seconds and peak memory are those of the whole process,
interpreter and imports included. Without files, ``df_index_rank1_of_2.json.gz`` of the corpus next to the checkout,
once as it is and once with its events repeated ``--times`` times.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

NAME = "shared/corpus/kineto/one_rank_of_many/df_index_rank1_of_2.json.gz"
CORPUS = next((p / NAME for p in harness.ROOT.parents if (p / NAME).exists()), Path(NAME))
OURS = """
import stashtrace, sys
trace = stashtrace.load(sys.argv[1])
row = next(stashtrace.analyze(trace, "breakdown").rows())
print(100 * row["idle_ns"] / row["window_ns"], 100 * row["overlap_ratio"])
"""
TO_STALLS = """
import stashtrace, sys
table = stashtrace.analyze(stashtrace.load(sys.argv[1]), "stalls", warmup=True)
print(len(table), int(table["stall_ns"].sum()))
"""
THEIRS = """
import os, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
rank = int(sys.argv[2])
analyzer = TraceAnalysis(trace_files={rank: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
idle = analyzer.get_temporal_breakdown(visualize=False)
overlap = analyzer.get_comm_comp_overlap(visualize=False)
print(float(idle["idle_time_pctg"].iloc[0]), float(overlap.iloc[0, -1]))
"""


def run(python: str, code: str, *arguments: str) -> dict[str, Any]:
    """CPU seconds, peak memory and output of a process with one core."""
    core = min(os.sched_getaffinity(0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    child = subprocess.Popen(
        [python, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert child.stdout is not None
    reported = child.stdout.read().decode().strip().splitlines()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not reported:
        raise SystemExit(f"{python} failed with {child.returncode} on {arguments[0]}")
    return {
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
        "told": [float(x) for x in reported[-1].split()],
    }


def content(path: Path) -> bytes:
    """A file, decompressed."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def repeated(path: Path, times: int, target: Path) -> Path:
    """The same recording several times in a row, each begun after the one before; ids stay apart."""
    whole = json.loads(content(path))
    events = whole["traceEvents"]
    stamps = [e["ts"] for e in events if e.get("ph") == "X"]
    length, ids = max(stamps) - min(stamps) + 2_000_000, 10**7
    out = []
    for n in range(times):
        for event in events:
            copy = {**event, "ts": event["ts"] + n * length}
            args = event.get("args") or {}
            if "correlation" in args:
                copy["args"] = {**args, "correlation": args["correlation"] + n * ids}
            if str(event.get("name", "")).startswith("ProfilerStep#"):
                copy["name"] = f"ProfilerStep#{int(event['name'][13:]) + 100 * n}"
            out.append(copy)
    target.write_bytes(gzip.compress(json.dumps({**whole, "traceEvents": out}).encode(), 6))
    return target


def main() -> None:
    """Measure and write results/kineto.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--hta", metavar="PYTHON", help="interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--name", default="kineto")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        files = [Path(f) for f in arguments.files]
        if not files:
            files = [CORPUS, repeated(CORPUS, arguments.times, folder / f"df_index_{arguments.times}_times.json.gz")]
        cases = [measure(path, arguments.hta, arguments.repeats) for path in files]
    finally:
        shutil.rmtree(folder)
    figures = {case.pop("file").partition(".")[0]: case for case in cases}
    more = "".join(f" {f}" for f in arguments.files)
    command = f"python benchmarks/bench_kineto.py{more} --hta PYTHON --repeats {arguments.repeats}"
    command += "" if arguments.files else f" --times {arguments.times}"
    print(harness.write_result(arguments.name, figures, command=command, modules=("numpy",)))


def measure(path: Path, hta: str | None, repeats: int) -> dict[str, Any]:
    """Figures of one file."""
    rank = str((json.loads(content(path)).get("distributedInfo") or {}).get("rank", 0))  # HTA requires it
    plain = content(path)
    case: dict[str, Any] = {"file": path.name, "json_bytes": len(plain), "events_count": plain.count(b'"ph"')}
    del plain
    runs: dict[str, list[dict[str, Any]]] = {"stashtrace": [], "to_stalls": [], "hta": []}
    for _ in range(repeats):
        runs["stashtrace"].append(run(sys.executable, OURS, str(path)))
        runs["to_stalls"].append(run(sys.executable, TO_STALLS, str(path)))
        if hta:
            runs["hta"].append(run(hta, THEIRS, str(path), rank))
    for name, found in runs.items():
        if found:
            case[name] = {
                "cpu_s": harness.summary([f["cpu_s"] for f in found]),
                "peak_bytes": harness.summary([f["peak_bytes"] for f in found]),
                "told": found[-1]["told"],
            }
    if hta:
        case["times_faster"] = case["hta"]["cpu_s"]["median"] / case["stashtrace"]["cpu_s"]["median"]
        case["memory_ratio"] = case["stashtrace"]["peak_bytes"]["median"] / case["hta"]["peak_bytes"]["median"]
    print(json.dumps(case, indent=1), file=sys.stderr)
    return case


if __name__ == "__main__":
    main()
