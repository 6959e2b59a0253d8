"""`stashtrace bisect` on a real repository of 12 commits whose loader is slow from one of them on.

    python benchmarks/bench_bisect.py [--planted COMMIT ...] [--out DIR]

The job (`tuned_job.py`, with other seconds for a sample) reads batches in its loop. Two other commits change how long
it also sleeps by 3 %, one more and one less, and one does not run. Each repetition plants the slow loader in another
commit. Bar: each time the right commit is named, or none. Writes results/bisect.json, or into another folder,
where other bisections by the same commit of this project stay; exit code 1 if a bar is missed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

JOB = Path(__file__).with_name("tuned_job.py")
COMMITS, STEPS = 12, 40
SAMPLE_S, SLOW_S = "0.001", "0.003"
GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.org")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planted", type=int, nargs="+", default=[5, 9, 2, 6], help="commits (default: 5 9 2 6)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    given = parser.parse_args()
    found = {row["planted"]: row for row in harness.earlier_rows("bisect", given.out)}
    for planted in given.planted:
        with tempfile.TemporaryDirectory() as folder:
            found[planted] = measure(Path(folder), planted)
    rows = list(found.values())
    missed = [row["planted"] for row in rows if row["found"] not in (None, row["planted"])]
    command = f"python benchmarks/bench_bisect.py --planted {' '.join(map(str, found))}"
    figures = {"rows": rows, "wrong_count": len(missed)}
    harness.write_result("bisect", figures, command=command, modules=("torch",), folder=given.out)
    return 1 if missed else 0


def measure(folder: Path, planted: int) -> dict[str, Any]:
    """Make the repository, and bisect it by what batches cost."""
    noise = sorted({number for number in (2, 6, 9) if number != planted})
    subprocess.run([*GIT, "init", "--quiet", str(folder)], check=True)
    for number in range(COMMITS):
        sample_s = SLOW_S if number >= planted else SAMPLE_S
        sleep_s = "0.0206" if noise[0] <= number < noise[1] else "0.02"
        text = JOB.read_text(encoding="utf-8").replace("Samples(8000, 0.004)", f"Samples(8000, {sample_s})")
        text = text.replace("(256, 0.02)", f"(256, {sleep_s})") + f"# {number}\n"
        if number == noise[-1]:
            text = "import no_such_module\n" + text
        (folder / "train.py").write_text(text, encoding="utf-8")
        subprocess.run([*GIT, "-C", str(folder), "add", "train.py"], check=True)
        subprocess.run([*GIT, "-C", str(folder), "commit", "--quiet", "-m", str(number)], check=True)
    begun = time.monotonic()
    words = ["bisect", "--good", f"HEAD~{COMMITS - 1}", "--bad", "HEAD", "--until-step", str(STEPS), "--format", "json"]
    job = [sys.executable, "train.py", "in_the_loop"]
    done = subprocess.run(
        [sys.executable, "-m", "stashtrace", *words, "--", *job], cwd=folder, stdout=subprocess.PIPE, check=False
    )
    document = json.loads(done.stdout) if done.returncode in (0, 5) and done.stdout else {}
    first = document.get("first_bad")
    return {
        "planted": planted,
        "found": int(first["subject"]) if first else None,
        "exit_code": done.returncode,
        "conditions": document.get("conditions"),
        "runs_count": document.get("runs_count"),
        "contended_runs_count": sum(one["contended_runs_count"] for one in document.get("judged", [])),
        "marks": {one["subject"]: one["mark"] for one in document.get("judged", [])},
        "seconds": time.monotonic() - begun,
    }


if __name__ == "__main__":
    sys.exit(main())
