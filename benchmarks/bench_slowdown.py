"""`stashtrace analyze slowdown` compared with published slow-downs of two jobs.

    python benchmarks/bench_slowdown.py DIR

DIR holds `trace-NAME.parquet`, `meta-NAME.yaml`, `result-NAME.json`, `ms-NAME.json` and `mw-NAME.json` of
ByteDance-Seed/StragglerAnalysis, for AR (64 GPUs, one worker slowed on purpose) and SE (128 GPUs, uneven sequences).
Their figures are those of their simulator. Writes results/slowdown.md and .json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.analysis.graph.pipeline_graph import build_pipeline
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.errors import DataLossWarning
from stashtrace.replay import Ideal, slowdown_of
from stashtrace.schema.table import Table

SECOND = 1e9
#: Their names of both sides of a message.
MESSAGES = {f"{direction}-send-recv": f"{direction}-pp-comm" for direction in ("forward", "backward")}


def by_name(table: Table, cause: str, column: str = "slowdown_ratio") -> dict[str, float]:
    """A column of the rows of one kind of cause."""
    return {str(row["name"]): float(row[column]) for row in table.rows() if row["cause"] == cause}


def largest_error(ours: dict[str, float], theirs: dict[str, float]) -> float:
    """Largest relative difference between figures of the same name."""
    shared = {name: MESSAGES.get(name, name) for name in ours}
    return max(abs(ours[name] / theirs[other] - 1) for name, other in shared.items() if other in theirs)


def compared(folder: Path, name: str) -> dict[str, Any]:
    """Ours and theirs of one job."""
    result, last_stage, slowest = (
        json.loads((folder / f"{kind}-{name}.json").read_text(encoding="utf-8")) for kind in ("result", "ms", "mw")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        trace = stashtrace.load(folder / f"trace-{name}.parquet")
    started = time.perf_counter()
    graph = build(trace)
    built = time.perf_counter()
    whole = Ideal(graph)
    table = slowdown_of(graph)
    done = time.perf_counter()

    def steps_s(kind: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        own = {int(step): float(seconds) for step, seconds in result[kind].items()}
        return np.array([own[step] for step in whole.steps.tolist()])

    error = np.abs(whole.replayed_ns / SECOND / steps_s("step_t_base") - 1)
    as_they_were, ideal = whole.steps_ns(graph.work_ns) / SECOND, whole.steps_ns(whole.ideal_work_ns) / SECOND
    theirs = Ideal(build_pipeline(TraceIndex(trace), overlapped_messages=True))
    last = max(by_name(table, "stage"), key=int)
    (slowest_name,) = by_name(table, "slowest_ranks")
    return {
        "job": name,
        "nodes_count": len(graph),
        "build_s": built - started,
        "slowdown_s": done - built,
        "steps_count": len(whole.steps),
        "replay_error_median_ratio": float(np.median(error)),
        "replay_error_worst_ratio": float(error.max()),
        "figures": [
            ("S, the job", whole.slowdown_ratio, result["blocking_slowdown"]),
            ("mean step without gaps, s", whole.step_ns / SECOND, float(steps_s("step_t_nodelay").mean())),
            ("mean ideal step, s", whole.ideal_step_ns / SECOND, float(steps_s("step_t_noblk").mean())),
            ("what gaps cost", float(whole.replayed_ns.mean()) / whole.step_ns, result["launch_slowdown"]),
            ("M_S, last stage", by_name(table, "stage", "recovered_ratio")[last], last_stage["Ms"]),
            (
                f"M_W, slowest 3 % (ours: rank {slowest_name})",
                by_name(table, "slowest_ranks", "recovered_ratio")[slowest_name],
                slowest["Mw"],
            ),
            *(
                (f"S of stage {stage}", ratio, result["blocking_decompose_by_stage"][stage])
                for stage, ratio in sorted(by_name(table, "stage").items())
            ),
            ("their messages: S", theirs.slowdown_ratio, result["blocking_slowdown"]),
            (
                "their messages: mean ideal step, s",
                theirs.ideal_step_ns / SECOND,
                float(steps_s("step_t_noblk").mean()),
            ),
        ],
        "worst_step_ratio": float(np.abs(as_they_were / steps_s("step_t_nodelay") - 1).max()),
        "worst_ideal_step_ratio": float(np.abs(ideal / steps_s("step_t_noblk") - 1).max()),
        "worst_replica_ratio": largest_error(by_name(table, "replica"), result["blocking_decompose_by_dp_rank"]),
        "worst_operation_ratio": largest_error(by_name(table, "operation"), result["blocking_decompose_by_optype"]),
    }


def lines_of(job: dict[str, Any]) -> list[str]:
    """One section of the page."""
    return [
        f"## {job['job']}",
        "",
        f"Replay of the {job['steps_count']} measured steps: median error {job['replay_error_median_ratio']:.3%}, worst"
        f" {job['replay_error_worst_ratio']:.3%}. {job['nodes_count']} nodes, built in {job['build_s']:.2f} s;"
        f" all causes in {job['slowdown_s']:.1f} s.",
        "",
        "| figure | ours | published | difference |",
        "|---|---|---|---|",
        *(f"| {name} | {ours:.4f} | {theirs:.4f} | {ours - theirs:+.4f} |" for name, ours, theirs in job["figures"]),
        "",
        f"Single figures differ at most by: steps without gaps {job['worst_step_ratio']:.2%}, ideal steps"
        f" {job['worst_ideal_step_ratio']:.2%}, S of a data-parallel number {job['worst_replica_ratio']:.2%}, S of an"
        f" operation {job['worst_operation_ratio']:.2%}.",
        "",
    ]


def main() -> int:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="traces and results of StragglerAnalysis")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    jobs = [compared(options.folder, name) for name in ("AR", "SE")]
    command = "python benchmarks/bench_slowdown.py DIR"
    commit = harness.versions("numpy")["commit"]
    figures = {
        job["job"]: job | {"figures": {name: {"ours": a, "published": b} for name, a, b in job["figures"]}}
        for job in jobs
    }
    harness.write_result("slowdown", figures, command=command, modules=("numpy", "pyarrow"), folder=options.out)
    lines = [
        "# Slow-downs of two published jobs",
        "",
        '`stashtrace analyze slowdown`, and what the authors of "Understanding Stragglers in Large Model Training',
        'Using What-if Analysis" publish of the same traces (ByteDance-Seed/StragglerAnalysis): AR, 64 GPUs, one',
        "worker slowed on purpose, and SE, 128 GPUs, uneven sequence lengths. Their figures are those of their",
        "simulator, in which messages overlap whatever a rank computes; the last two rows of each table are ours with",
        "that taken over.",
        "",
        f"`{command}`, commit {commit}.",
        "",
        *(line for job in jobs for line in lines_of(job)),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    sys.stdout.write(text)
    (options.out / "slowdown.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
