"""Predictions of `stashtrace whatif` compared with measured runs.

    python benchmarks/bench_whatif.py --runs DIR [--repeat 3] [--only NAME ...] [--faults DIR2]

Jobs of which one is the other with something changed (`benchmarks/whatif/pairs.py`): half the link (network
namespaces with token buckets, and a relay that delays), faster batches, reads from memory, other workers and
ranks, no late rank, compressed gradients. Each job is recorded several times, all of them in turn, so that what the
machine does by itself is known. Each recording predicts the other job, and is held against the mean over the
recordings of that one. ``--faults`` adds the faulty jobs that `bench_faults.py --runs` kept. Writes results/whatif.md
and .json. Needs root for the namespaces; recordings that are in DIR are not made again.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import harness
import numpy as np

sys.path.insert(0, str(harness.ROOT))

from whatif import page
from whatif.judging import as_row, predictions, replay_of, spreads, without_faults
from whatif.pairs import HELD_APART, QUESTIONS, SETUPS, SHAPES
from whatif.recording import prepare, recording


def recorded(runs: Path, repeat: int, only: list[str]) -> dict[str, list[Path]]:
    """Recordings of each job; those that are missing are made, all jobs once before any is made again."""
    names = [name for name in SETUPS if not only or name in only]
    found: dict[str, list[Path]] = {name: [] for name in names}
    prepare(runs)
    for repetition in range(repeat):
        for name in names:
            begin = time.monotonic()
            found[name].append(recording(name, SETUPS[name], runs, repetition))
            print(f"{name} {repetition}: {time.monotonic() - begin:.1f} s", flush=True)
    return found


def main() -> int:
    """Record, predict, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--repeat", type=int, default=3, help="recordings of each job")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these jobs alone")
    parser.add_argument("--faults", type=Path, help="folder that bench_faults.py --runs kept")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    folders = recorded(options.runs.absolute(), options.repeat, options.only)
    rows = predictions(folders, QUESTIONS)
    apart = predictions(folders, HELD_APART)
    differ = spreads(folders)
    faults = without_faults(options.faults) if options.faults else []
    replays = {
        shape: [replay_of(name, folder) for folder in folders[name]]
        for shape, name in SHAPES.items()
        if name in folders
    }
    typical, most = float(np.median(list(differ.values()))), max(differ, key=differ.__getitem__)
    noise = f"recordings of one job differ by {typical:.1%} in the median, by {differ[most]:.1%} at most ({most})"
    for line in (*(page.totals(own) for own in (rows, apart, faults) if own), noise):
        print(line)
    command = f"python benchmarks/bench_whatif.py --runs DIR --repeat {options.repeat}"
    command += f" --only {' '.join(options.only)}" if options.only else ""
    command += " --faults DIR2" if options.faults else ""
    figures = {
        "predictions": [as_row(row) for row in rows],
        "held_apart": [as_row(row) for row in apart],
        "straggler_predictions": [as_row(row) for row in faults],
        "replays": {shape: [as_row(row) for row in own] for shape, own in replays.items()},
        "spread_ratio": differ,
    }
    facts, versions = harness.machine(), harness.versions("torch")
    # Jobs that were held apart, recorded alone, have a separate page next to that of all others.
    name = "whatif" if rows or faults else "whatif_apart"
    harness.write_result(name, figures, command=command, modules=("numpy", "torch"), folder=options.out)
    lines = [
        "# What-if predictions" if rows or faults else "# What-if predictions of jobs that were held apart",
        "",
        (__doc__ or "").split("\n\n")[2].replace("\n", " ").split(" ``--faults``")[0],
        "",
        f"`{command}`, commit {versions['commit']}, {facts['cores_count']} cores of {facts['cpu']}"
        f"{' (virtual)' if facts['virtual'] else ''}, torch {versions['torch']}",
        "",
    ]
    if rows:
        lines += [
            f"**{page.totals(rows)}; {noise}.**",
            "",
            *page.by_kind(rows),
            "",
            *REMARKS,
            "",
            "## The run as it was",
            "",
            "The example in five shapes, replayed without a change; the worst of its recordings.",
            "",
            *page.shapes(replays),
            "",
            "## All predictions",
            "",
            *page.all_rows(rows, differ),
            "",
        ]
    if apart:
        lines += [
            "## Jobs that were held apart",
            "",
            "No constant of the replay was chosen by these: bursts, passes that start their workers again, ranks that"
            " are late in turn or once in 30 steps, and a late rank on CPUs that the others need.",
            "",
            f"**{page.totals(apart)}.**",
            "",
            *page.all_rows(apart, differ),
            "",
        ]
    if faults:
        lines += [
            "## Jobs with a fault, predicted without it",
            "",
            "Faulty jobs of `python benchmarks/bench_faults.py --runs DIR2`, and jobs of the same loop, ranks and"
            " workers without a fault.",
            "",
            f"**{page.totals(faults)}.**",
            "",
            *page.all_rows(faults, {}),
        ]
    (options.out / f"{name}.md").write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
    return 0


#: What the table does not say by itself.
REMARKS = (
    "What the intervals hold open was chosen with trials of such jobs on this machine; others may be off by more.",
    "",
    "What is behind the misses:",
    "",
    "- `ranks`: all ranks share the two CPUs of this machine, with their workers. More of them get in each other's way,"
    " as ranks on separate hosts would not: from four to two the prediction is too long.",
    "- `straggler`: lateness that goes leaves what the ranks differ by anyway. How much that is, and whether transfers"
    " take longer where all ranks enter them together, differs between jobs: with gloo on two CPUs they do in the"
    " faulty jobs below, and in `late-15` they get shorter, 1.9 ms instead of 2.5. A recording in which one rank is"
    " always late has no transfer that shows it. Of `example-late` 70 % of the step goes, and what is left scatters"
    " as it did, by several percent of the rest; one of its recordings was slower at everything that computes.",
    "- `workers`, and `prep` of the jobs called `crowd`: the CPUs are full, and recordings of one job differ most; the"
    " steps of `example-w1` and `example-w2` scatter by half their length, so that their mean alone is known to 8 %.",
    "- `fetch`: what a read from memory takes is known where the job makes some (`cold-half`). Where all reads wait"
    " (`cold-all`), those of other code show it, and they may be three times as long, because they read into fresh"
    " memory: the truth lies at the lower end of these intervals, and nothing in the recording says so. Twice the reads"
    " from storage are as wrong as storage was quicker or slower in that recording.",
    "- `network.bandwidth`: the faster the link, the more it is the CPUs that decide. At 200 to 800 Mbit/s the shaper"
    " and gloo's threads compete for them, and predictions of a first trial were off by 3 to 22 %.",
    "- jobs called `groups`: two process groups over one link. Whether they share it only some of the recordings show;"
    " of the others the interval holds both, and the real step is at one end of it.",
    "- `compute`: what is asked is what the recording computed, and what the other job has more or less.",
)


if __name__ == "__main__":
    sys.exit(main())
