"""The gate on 20 pairs of equal real jobs, which must not be called worse, and on the same jobs made slower.

    python benchmarks/bench_gate.py [--runs DIR]

Each of 20 jobs of two gloo ranks (`fault_job.py`; they differ in loop, loader and lengths of work) is recorded twice
as it is, and once with one rank kept in each step for a sixth of it. `stashtrace check` compares the first two, and
the first with the slow one. Bars: at most one of 20 equal pairs exits 1, and 18 of 20 slow jobs do. The page also says
what the run-to-run allowance is good for: in how many ordered pairs `KIND+0%` would have been called worse with other
ones. Writes results/gate.md and .json; exit code 1 if a bar is missed. ``--runs`` keeps the recordings, and takes those
that it finds there.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import harness
from bench_faults import LOOPS, record, recorded
from fault_job import BASE_S, Config

sys.path.insert(0, str(harness.ROOT))

import stashtrace
from stashtrace.analysis.compare.change import RUN_TO_RUN_RATIO, Side
from stashtrace.analysis.compare.gate_verdict import DEFAULT_CONDITION, Condition, judge
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun, steps_of_run
from stashtrace.cli import main as command_line
from stashtrace.errors import DataLossWarning

PAIRS, STEPS, WORSE_AT_MOST, FOUND_AT_LEAST = 20, 60, 1, 18
SLOWER_RATIO = 1 / 6
#: Allowances that the page compares, in percent of the step.
ALLOWANCES = (0, 1, 2, 3, 4)

PAGE = """\
# The gate: equal jobs compared with each other, and with slower ones

{pairs} jobs of two gloo ranks (`benchmarks/fault_job.py`), {steps} steps of about 40 ms: each loop with and without
loader workers, with even work and with work that varies by step. Each is recorded twice as it is, one after the other,
and once with rank 1 asleep for {slower_ms:.1f} ms in each step. `stashtrace check` compares single runs, with its
allowance of {allowance:g} % of the step. Bars: of {pairs} equal pairs at most {worse} exits 1, of {pairs} slow jobs at
least {found} do.

`{command}`, {date}, {cores} cores of {cpu}{virtual}, kernel {kernel}, Python {python}, torch {torch}, load {load}

"""


def jobs() -> list[tuple[str, Config]]:
    """(name, job) of the equal pairs."""
    planned = []
    for number in range(PAIRS):
        loop, workers, lengths = LOOPS[number % 3], (0, 2)[number // 3 % 2], number % 4 == 3
        config = Config(loop, 2, workers, steps=STEPS, lengths=lengths, seed=number)
        planned.append((f"{number:02d}-{loop}-{workers}{'-lengths' * lengths}", config))
    return planned


def slower(config: Config) -> Config:
    """The same job with a rank that sleeps in each step."""
    return dataclasses.replace(config, kind="sleep", rank=1, size_ms=round(SLOWER_RATIO * (BASE_S + 0.008) * 1e3, 1))


def recordings(folder: Path, number: int, name: str, config: Config) -> list[Path]:
    """Run directories of a job: as it is, as it is, and slower; which of the equal ones is first alternates."""
    planned = [(f"{name}-a", config), (f"{name}-b", config)]
    for called, job in [*(planned[::-1] if number % 2 else planned), (f"{name}-slow", slower(config))]:
        if recorded(job, folder / called) is None:
            record(job, folder / called)
    return [folder / f"{name}-{which}" / "run" for which in ("a", "b", "slow")]


def checked(before: Path, after: Path, condition: str) -> dict[str, Any]:
    """The answer of ``stashtrace check``."""
    printed, words = io.StringIO(), ["check", str(after), "--against", str(before), "--fail-if", condition]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = command_line([*words, "--format", "json"])
    answer: dict[str, Any] = json.loads(printed.getvalue())
    if code != answer["exit_code"]:
        raise RuntimeError(f"{after}: exit code {code}, but the answer says {answer['exit_code']}")
    return answer


def steps(path: Path) -> StepsOfRun:
    """The steps of a recording."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return steps_of_run(stashtrace.load(str(path)))


def false_alarms(pairs: list[tuple[StepsOfRun, StepsOfRun]]) -> dict[str, dict[str, int]]:
    """Kind -> allowance in percent -> ordered pairs in which it would be called worse with a limit of 0 %."""
    kinds = sorted(
        {kind for pair in pairs for run in pair for kind in run.kinds}, key=lambda kind: (kind != STEP, kind)
    )
    conditions = [Condition(kind, 0) for kind in kinds]
    found: dict[str, dict[str, int]] = {kind: {str(percent): 0 for percent in ALLOWANCES} for kind in kinds}
    for first, second in (*pairs, *((b, a) for a, b in pairs)):
        sides = Side("before", (first,)), Side("after", (second,))
        for percent in ALLOWANCES:
            for one in judge(*sides, conditions, allowance_ratio=percent / 100).judged:
                found[one.condition.kind][str(percent)] += one.verdict == "worse"
    return found


def main() -> int:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the recordings, kept (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.runs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stashtrace-gate-")))
        folder.mkdir(parents=True, exist_ok=True)
        return run(folder.absolute(), options.out)


def run(folder: Path, out: Path) -> int:
    """The whole measure, with its recordings in a folder."""
    rows, pairs = [], []
    for number, (name, config) in enumerate(jobs()):
        first, second, slow = recordings(folder, number, name, config)
        equal, strict = (checked(first, second, condition) for condition in (DEFAULT_CONDITION, "step+0%"))
        found = checked(first, slow, DEFAULT_CONDITION)
        pairs.append((steps(first), steps(second)))
        rows.append({"name": name, "equal": kept(equal), "equal_0": kept(strict), "slow": kept(found)})
        print(f"{name}: equal {rows[-1]['equal']['verdict']}, slower {rows[-1]['slow']['verdict']}", flush=True)
    worse = sum(row["equal"]["verdict"] == "worse" for row in rows)
    seen = sum(row["slow"]["verdict"] == "worse" for row in rows)
    print(f"equal: {worse} of {len(rows)} worse; slower: {seen} of {len(rows)} worse")
    write(rows, false_alarms(pairs), out)
    return int(worse > WORSE_AT_MOST or seen < FOUND_AT_LEAST)


def kept(answer: dict[str, Any]) -> dict[str, Any]:
    """What a row keeps of an answer."""
    (one,) = answer["conditions"]
    step_ns = answer["kinds"][0]["before_ns"]
    ratios = {f"{name}_ratio": one[f"{name}_ns"] / step_ns for name in ("growth", "low", "high", "detectable")}
    return {"verdict": one["verdict"], "before_ms": step_ns / 1e6, **ratios}


def write(rows: list[dict[str, Any]], alarms: dict[str, dict[str, int]], out: Path) -> None:
    """The page and the JSON."""
    verdicts = {name: Counter(row[name]["verdict"] for row in rows) for name in ("equal", "equal_0", "slow")}
    figures = {
        "pairs_count": len(rows),
        "verdicts": {name: dict(counts) for name, counts in verdicts.items()},
        "false_alarms_count": alarms,
        "ordered_pairs_count": 2 * len(rows),
        "rows": rows,
    }
    command = "python benchmarks/bench_gate.py"
    path = harness.write_result("gate", figures, command=command, modules=("numpy", "torch"), folder=out)
    text = PAGE.format(
        pairs=len(rows),
        steps=STEPS,
        slower_ms=slower(jobs()[0][1]).size_ms,
        allowance=100 * RUN_TO_RUN_RATIO,
        worse=WORSE_AT_MOST,
        found=FOUND_AT_LEAST,
        **harness.page_facts(path),
    )
    for name, words in (
        ("equal", f"Equal pairs, `{DEFAULT_CONDITION}`"),
        ("equal_0", "Equal pairs, `step+0%`"),
        ("slow", f"Slower jobs, `{DEFAULT_CONDITION}`"),
    ):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts[name].most_common())
        text += f"**{words}: {counts}.**\n\n"
    text += "| job | step ms | equal: growth | between | verdict | slower: growth | between | verdict |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        cells = [row["name"], f"{row['equal']['before_ms']:.1f}"]
        for name in ("equal", "slow"):
            one = row[name]
            between = f"{one['low_ratio']:+.1%} to {one['high_ratio']:+.1%}"
            cells += [f"{one['growth_ratio']:+.1%}", between, one["verdict"]]
        text += "| " + " | ".join(cells) + " |\n"
    text += f"\nOf {2 * len(rows)} ordered pairs of equal runs, these would be called worse with a limit of 0 %, by the"
    text += " allowance in percent of the step:\n\n"
    text += f"| kind | {' | '.join(map(str, ALLOWANCES))} |\n|---|{'---|' * len(ALLOWANCES)}\n"
    for kind, counts in alarms.items():
        text += f"| {kind} | {' | '.join(str(counts[str(percent)]) for percent in ALLOWANCES)} |\n"
    (out / "gate.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
