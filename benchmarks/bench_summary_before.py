"""The summary by this code compared with that of an earlier commit: CPU time and memory, in turn, on the same runs.

    python benchmarks/bench_summary_before.py [--reference COMMIT] [--checkout DIR] [--ranks 64 256] [--runs DIR ...]
        [--repeats 5]

The earlier code runs in a separate git worktree, with native code built there; ``--checkout`` takes one that is built
already. Without ``--reference`` it is the newest tag, else the commit of the last result. Made-up runs are written by
this code; ``--runs`` adds recorded ones, and files that load. Both codes take turns, the one that begins changes, and
the ratio is that of each pair: a machine that does other work slows both down. The bar: a summary takes no more than
1.1 times the CPU time of the release before, or the release says what that buys. Writes results/summary_before.json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT))

NAME = "summary_before"
_BAR_RATIO = 1.1
#: What the native code of a commit is made of.
_NATIVE = ("csrc", "CMakeLists.txt", "setup.py")
_CHILD = """
import contextlib, io, json, resource, sys
from pathlib import Path
from stashtrace.cli import main

with contextlib.redirect_stdout(io.StringIO()):
    code = main(["summary", sys.argv[1]])
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024
print(json.dumps({"code": code, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": peak}))
"""


def main() -> int:
    """Measure, print, write the result; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", metavar="COMMIT", default=last_release(), help="default: %(default)s")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="a checkout of the reference with its native code")
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256], help="ranks of the made-up runs")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--runs", type=Path, nargs="*", default=[], metavar="PATH", help="more runs and files")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        before = options.checkout or stack.enter_context(built(options.reference))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stashtrace-before-")))
        runs = {f"{ranks}_ranks": made_up(folder / str(ranks), ranks, options.steps) for ranks in options.ranks}
        runs |= {path.name: path.absolute() for path in options.runs}
        found = {name: compared(before, run, options.repeats) for name, run in runs.items()}
        reference = harness.commit_of(before)
    figures: dict[str, Any] = {"reference": reference, "steps_count": options.steps}
    for name, row in found.items():
        figures |= {f"{name}_{key}": value for key, value in row.items()}
    listed = " ".join(map(str, options.ranks))
    command = (
        f"python benchmarks/bench_summary_before.py --reference {reference} --ranks {listed} --steps {options.steps}"
        f" --repeats {options.repeats}"
    )
    harness.write_result(NAME, figures, command=command, modules=("numpy",), folder=options.out)
    return int(any(row["cpu_ratio"]["median"] > _BAR_RATIO for row in found.values()))


def last_release() -> str:
    """Return the newest tag; where there is none, the commit that wrote the last result, else the one before this."""
    git = ["git", "-C", str(harness.ROOT), "describe", "--tags", "--abbrev=0"]
    tag = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    result = harness.RESULTS / f"{NAME}.json"
    if tag or not result.exists():
        return tag or "HEAD~1"
    commit: str = json.loads(result.read_text(encoding="utf-8"))["versions"]["commit"]
    return commit.removesuffix("-dirty")


@contextlib.contextmanager
def built(commit: str) -> Iterator[Path]:
    """Give a worktree of a commit with its native code: this checkout's if its sources are the same, else a new one."""
    git = ["git", "-C", str(harness.ROOT)]
    with tempfile.TemporaryDirectory(prefix="stashtrace-reference-") as name:
        place = Path(name) / "reference"
        subprocess.run([*git, "worktree", "add", "--detach", "--quiet", str(place), commit], check=True)
        try:
            if subprocess.run([*git, "diff", "--quiet", commit, "--", *_NATIVE], check=False).returncode:
                build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
                subprocess.run(build, cwd=place, check=True, stdout=sys.stderr)
            else:
                for library in (harness.ROOT / "stashtrace").glob("*.so"):
                    (place / "stashtrace" / library.name).symlink_to(library)
            yield place
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(place)], check=True)


def made_up(folder: Path, ranks: int, steps: int) -> Path:
    """Write the run that ``bench_many_ranks.py`` measures."""
    from stashtrace.lab import synth

    job = synth.SyntheticJob(ranks=ranks, workers=2, steps=steps, calls_per_batch=60, late_rank=1, late_ns=7_000_000)
    synth.write(folder, job)
    return folder


def compared(before: Path, run: Path, repeats: int) -> dict[str, Any]:
    """Return CPU time and memory of both codes and the ratios of the pairs; the first pair, not counted, warms up."""
    pairs = []
    for turn in range(repeats + 1):
        order = (before, harness.ROOT) if turn % 2 else (harness.ROOT, before)
        of = {code: child(code, run) for code in order}
        pairs.append((of[before], of[harness.ROOT]))
    pairs = pairs[1:]
    ratio = harness.summary([new["cpu_s"] / old["cpu_s"] for old, new in pairs])
    took, now = (harness.summary([pair[at]["cpu_s"] for pair in pairs]) for at in (0, 1))
    row: dict[str, Any] = {
        "before_cpu_s": took,
        "cpu_s": now,
        "cpu_ratio": ratio,
        "before_peak_bytes": max(old["peak_bytes"] for old, _ in pairs),
        "peak_bytes": max(new["peak_bytes"] for _, new in pairs),
    }
    print(
        f"{run.name}: {took['median']:.2f} -> {now['median']:.2f} s of CPU, "
        f"{ratio['median']:.2f} times ({ratio['min']:.2f} to {ratio['max']:.2f}), "
        f"{row['before_peak_bytes'] / 1e6:,.0f} -> {row['peak_bytes'] / 1e6:,.0f} MB"
    )
    return row


def child(code: Path, run: Path) -> dict[str, float]:
    """Return what a separate process took for one summary by a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    # Modules are compiled in the first pair, and kept.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-c", _CHILD, str(run)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=run.parent)
    found: dict[str, float] = json.loads(done.stdout)
    if found["code"]:
        raise SystemExit(f"the summary of {run.name} by {code.name} ended with code {found['code']}")
    return found


if __name__ == "__main__":
    sys.exit(main())
