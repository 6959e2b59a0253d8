"""How long after the fact does a followed job (`run --live`) say that it is stuck, or that a step was slow?

    python benchmarks/bench_live_lines.py [--only PART ...] [--scenes NAME ...] [--parts FOLDER]

Real jobs of two ranks on gloo. Some hang in planted ways (``hangs/job.py``), at their eighth step, before the follower
has closed any, or at their 250th; the line must name the rank and the reason at the latest 15 s after the last
progress. One makes 1,100 steps, ten of which are planted slow ones (``slow_steps_job.py``): counted is the time from
the end of such a step to its line. Bar: 15 s for each hang, 10 s for each slow step, and no line about another step
that is slow by a quarter of what was planted.

``--only``: early, late, slow; their rows stay in the folder ``--parts``, so that the parts can be run apart. Once all
three are there, writes results/live_lines.json; exit code 1 if a bar is missed. About nine minutes; reasons need py-spy
(the extra ``stacks``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench_hangs
import harness
import slow_steps_job

LIMIT_S, SLOW_LIMIT_S = 15.0, 10.0
SCENES = ("read", "lock", "gil", "dead_worker", "sigstop", "recv", "worker_read")
AT_STEP = {"early": 8, "late": 250}
PARTS = ("early", "late", "slow")
JOB = Path(slow_steps_job.__file__)


def main() -> int:
    """Run the jobs of the parts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES, help="which hangs")
    parser.add_argument("--parts", type=Path, default=Path(tempfile.gettempdir()) / "stashtrace-live-lines")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    options.parts.mkdir(parents=True, exist_ok=True)
    for part in options.only:
        rows = slow_steps() if part == "slow" else [hang(scene, AT_STEP[part]) for scene in options.scenes]
        (options.parts / f"{part}.json").write_text(json.dumps(rows))
    files = {part: options.parts / f"{part}.json" for part in PARTS}
    if not all(path.exists() for path in files.values()):
        return 0
    found = {part: json.loads(path.read_text()) for part, path in files.items()}
    hangs, slow = [*found["early"], *found["late"]], found["slow"]
    others = [row for row in slow if not row["planted"]]
    planted = [row for row in slow if row["planted"]]
    figures = {
        "hangs": hangs,
        "hangs_right_count": sum(row["right"] for row in hangs),
        "early_hang_s": harness.summary([row["line_s"] for row in found["early"] if row["line_s"] is not None]),
        "late_hang_s": harness.summary([row["line_s"] for row in found["late"] if row["line_s"] is not None]),
        "slow_steps": planted,
        "slow_step_s": harness.summary([row["line_s"] for row in planted if row["line_s"] is not None]),
        "other_slow_steps": others,
    }
    reported = all(row["line_s"] is not None and row["line_s"] <= SLOW_LIMIT_S for row in planted)
    command = "python benchmarks/bench_live_lines.py"
    print(harness.write_result("live_lines", figures, command=command, modules=("torch", "numpy"), folder=options.out))
    return 0 if reported and not others and all(row["right"] for row in hangs) else 1


def hang(scene: str, at_step: int) -> dict[str, Any]:
    """Run a job that hangs, and wait for the line of its follower."""
    expected = bench_hangs.HANGS[scene]
    row: dict[str, Any] = {"scene": scene, "at_step": at_step, "line_s": None, "right": False, "said": ""}
    with tempfile.TemporaryDirectory(prefix="live-lines-") as name:
        folder = Path(name)
        with bench_hangs.job(scene, folder, expected.ranks, "--live", at_step=at_step) as began_s:
            offset_s = time.time() - time.monotonic()
            deadline_s = time.monotonic() + bench_hangs.PATIENCE_S
            while time.monotonic() < deadline_s:
                late = [e for e in events(folder / "run", "stuck") if e["realtime_ns"] / 1e9 - offset_s > began_s]
                if late:
                    row["line_s"] = late[0]["realtime_ns"] / 1e9 - offset_s - began_s
                    row["said"] = bench_hangs.shown(late[0]["text"])
                    is_right = re.search(expected.first, late[0]["text"]) and re.search(
                        expected.reason, late[0]["text"]
                    )
                    row["right"] = bool(is_right) and row["line_s"] <= LIMIT_S
                    break
                time.sleep(0.2)
    print(row, file=sys.stderr, flush=True)
    return row


def slow_steps() -> list[dict[str, Any]]:
    """Run the job with slow steps to its end; return a row for each that is planted or had a line."""
    with tempfile.TemporaryDirectory(prefix="live-lines-") as name:
        folder = Path(name)
        launch = [sys.executable, str(bench_hangs.LAUNCH), "--", sys.executable, str(JOB), name]
        command = [sys.executable, "-m", "stashtrace", "run", "--live", "--no-merge", "--out", str(folder / "run")]
        environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
        subprocess.run([*command, "--", *launch], env=environment, check=True, capture_output=True, timeout=400)
        ends = [line.split() for rank in (0, 1) for line in (folder / f"ends.{rank}").read_text().splitlines()]
        ended_ns = {int(step): max(int(at) for other, at in ends if other == step) for step, _ in ends}
        lines = {event["step"]: event for event in reversed(events(folder / "run", "slow_step"))}
    rows = []
    for step, at_ns in ended_ns.items():
        line = lines.pop(step, None)
        said = None if line is None else (line["realtime_ns"] - at_ns) / 1e9
        rows.append({"step": step, "planted": True, "line_s": said, "said": "" if line is None else line["text"]})
    most_ns = slow_steps_job.LONGER_S * 1e9 / 4
    for step, line in lines.items():
        if line["cost_ns"] > most_ns:
            rows.append({"step": step, "planted": False, "line_s": None, "said": line["text"]})
    print(rows, file=sys.stderr, flush=True)
    return rows


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind in the log of a run."""
    lines = [line for path in run.glob("events-*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return [event for line in lines if line.endswith("\n") and (event := json.loads(line))["kind"] == kind]


if __name__ == "__main__":
    sys.exit(main())
