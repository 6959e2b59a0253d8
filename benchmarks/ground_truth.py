"""Is the stall budget true? Every scenario of tests/ground_truth, several interleaved runs, medians.

    python benchmarks/ground_truth.py [--runs 5] [--only NAME ...]

Writes results/ground_truth.md and .json. The faults are real (disk limit, CPU, sleep, shaped link, large checkpoint);
truth is the example's clock in the same run. Exit code 1 if a median is outside the tolerance.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
from ground_truth import machine, scenarios

TOLERANCE_PERCENT = 5.0
OTHER_PERCENT = 2.0
#: Kinds below this share of the step on both sides are left out of the printed table (never out of the judgement).
SHOWN_PERCENT = 1.0

PAGE = """\
# Ground truth: the script's clock and stashtrace

Each scenario slows the example down in one real way; truth is the script's clock in the same run
(`examples/plain_clock.py`), applied to the definitions of `docs/concepts/stalls.md`. Figures are ms per step, medians
over interleaved runs; the difference is in percent of the step, with the extremes of the runs. The kind that the fault
makes is **bold**. Bar: every kind within {tolerance:g} % of the step, `other` never more than {other:g} % above the
truth. Kinds under {shown:g} % on both sides are in the JSON only.

`{command}`, {date}, {cores} cores of {cpu}{virtual}, kernel {kernel}, Python {python}, torch {torch}, load {load}

| scenario | rank | step ms | kind | truth ms | stashtrace ms | difference | extremes | |
|---|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    chosen = [s for s in scenarios.SCENARIOS if not options.only or s.name in options.only]

    runs: dict[str, list[list[scenarios.RankComparison]]] = {s.name: [] for s in chosen}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="stashtrace-truth-") as folder:
        data = Path(folder) / "images"
        scenarios.write_images(data)
        for number in range(options.runs):
            for scenario in chosen:
                if scenario.name in missing:
                    continue
                out = Path(folder) / f"{scenario.name}-{number}"
                out.mkdir()
                try:
                    runs[scenario.name].append(scenarios.run(scenario, data, out))
                except machine.Missing as error:
                    missing[scenario.name] = str(error)
                scenarios.clean(out)
                print(f"run {number + 1}/{options.runs}  {scenario.name}", file=sys.stderr)

    rows = [row for s in chosen if runs[s.name] for row in table_rows(s, runs[s.name])]
    command = f"python benchmarks/ground_truth.py --runs {options.runs}"
    figures = {"runs_count": options.runs, "rows": rows, "not_possible_here": missing}
    harness.write_result("ground_truth", figures, command=command, modules=("torch", "numpy"), folder=options.out)
    (options.out / "ground_truth.md").write_text(markdown(rows, missing, chosen, command), encoding="utf-8")
    return 1 if any(not row["within"] for row in rows) else 0


def table_rows(scenario: scenarios.Scenario, runs: list[list[scenarios.RankComparison]]) -> list[dict[str, Any]]:
    """One row per rank and kind: medians over the runs."""
    rows = []
    for ranks in zip(*runs, strict=True):
        step_ms = statistics.median(result.wall_ns for result in ranks) / 1e6
        for kind in sorted({kind for result in ranks for kind in result.kinds}):
            truth = statistics.median(result.truth_ns.get(kind, 0) for result in ranks) / 1e6
            traced = statistics.median(result.traced_ns.get(kind, 0) for result in ranks) / 1e6
            differences = [result.difference_percent(kind) for result in ranks]
            difference = statistics.median(differences)
            limit = OTHER_PERCENT if kind == "other" and difference > 0 else TOLERANCE_PERCENT
            rows.append(
                {
                    "scenario": scenario.name,
                    "rank": ranks[0].rank,
                    "step_ms": step_ms,
                    "kind": kind,
                    "dominant": kind == scenario.dominant[ranks[0].rank],
                    "truth_ms": truth,
                    "stashtrace_ms": traced,
                    "difference_percent": difference,
                    "difference_min_percent": min(differences),
                    "difference_max_percent": max(differences),
                    "within": abs(difference) <= limit,
                }
            )
    return rows


def markdown(
    rows: list[dict[str, Any]], missing: dict[str, str], chosen: list[scenarios.Scenario], command: str
) -> str:
    """The published page."""
    facts, versions = harness.machine(), harness.versions("torch", "numpy")
    lines = PAGE.format(
        tolerance=TOLERANCE_PERCENT,
        other=OTHER_PERCENT,
        shown=SHOWN_PERCENT,
        command=command,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        cores=facts["cores_count"],
        cpu=facts["cpu"],
        virtual=" (virtual)" if facts["virtual"] else "",
        kernel=facts["kernel"],
        load=facts["load_average"][0],
        python=versions["python"],
        torch=versions["torch"],
    ).splitlines()
    before = ("", -1)
    for row in rows:
        share = 100 * max(row["truth_ms"], row["stashtrace_ms"]) / row["step_ms"]
        if share < SHOWN_PERCENT and row["within"] and row["kind"] != "other":
            continue
        here = (row["scenario"], row["rank"])
        head = (row["scenario"], str(row["rank"]), f"{row['step_ms']:.1f}") if here != before else ("", "", "")
        before = here
        kind = f"**{row['kind']}**" if row["dominant"] else row["kind"]
        lines.append(
            f"| {' | '.join(head)} | {kind} | {row['truth_ms']:.2f} | {row['stashtrace_ms']:.2f}"
            f" | {row['difference_percent']:+.2f} % | {row['difference_min_percent']:+.2f} .."
            f" {row['difference_max_percent']:+.2f} % | {'' if row['within'] else 'outside'} |"
        )
    lines += ["", "| scenario | the fault |", "|---|---|"]
    lines += [f"| {s.name} | {s.title} |" for s in chosen]
    if missing:
        lines += ["", "Not possible on this machine:", ""]
        lines += [f"- {name}: {reason}" for name, reason in missing.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
