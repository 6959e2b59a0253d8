"""Puts the output of the commands into pages of docs/guides, from made-up jobs.

python scripts/docs/generate_guides.py          # write
python scripts/docs/generate_guides.py --check  # exit 1 if a page is stale
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stashtrace.cli import main as stashtrace
from stashtrace.cli.synth import main as write_synthetic

ROOT = Path(__file__).resolve().parents[2]
#: What a kernel takes in the job called slower; the first one takes 420.
SLOWER_US = 610


def output_of(line: str) -> str:
    """What a command line prints on stdout; ``| head -N`` and ``| tail -N`` leave some lines of it."""
    command, _, kept = line.partition(" | ")
    printed, words = io.StringIO(), shlex.split(command)[1:]
    with contextlib.redirect_stdout(printed):
        code = stashtrace(words)
    # The exit code of a verdict is an answer.
    if code and not (words[0] == "check" and code in (1, 5)):
        raise SystemExit(f"{command}: exit code {code}")
    lines = printed.getvalue().splitlines(keepends=True)
    count = int(kept.partition(" -")[2] or len(lines))
    return "".join(lines[:count] if kept.startswith("head") else lines[-count:])


def gpu_traces() -> None:
    """The jobs of the page on GPU traces, in the current directory."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from kineto_job import write_job

    write_job(Path("job"))
    write_job(Path("slower"), SLOWER_US)


def late_ranks() -> None:
    """The job of the page on late ranks: 8 ranks, of which rank 3 takes 40 ms longer in each backward."""
    write_synthetic(["made-up", "--ranks", "8", "--steps", "20", "--late-rank", "3", "--late", "40"])


def gate() -> None:
    """Runs of one made-up job with two seeds, and one whose transfers take longer; its steps and runs spread."""
    from stashtrace.lab.synth import SyntheticJob, write

    settings = {"workers": 1, "steps": 80, "calls_per_batch": 0, "spread_ratio": 0.02, "run_spread_ratio": 0.005}
    for name, changes in (("main", {}), ("equal", {"seed": 3}), ("slow", {"seed": 4, "transfer_ns": 24_000_000})):
        write(f"run-{name}", SyntheticJob(**{**settings, **changes}))


def recommend() -> None:
    """A characterization made of published throughputs, and a catalog of its hosts."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from published_runs import write_published

    write_published(Path())


def slowdown() -> None:
    """Two replicas of a pipeline of two stages, in which rank 1 computes for twice as long."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from pipeline_files import two_stages, write

    write(Path("trace-made-up.parquet"), two_stages({(1, 0): 2.0}, replicas=2))


def history() -> None:
    """Two months of a fleet in which a host is late, a commit is slow, and one job's checkpoints slow the reads."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from made_up_history import MINUTE, SECOND, Fleet, Job, write_history

    writer = Job(("torchrun", "pretrain.py"), hosts=3, every_ns=25 * MINUTE, write_ns=100 * SECOND)
    fleet = Fleet(
        seed=7,
        runs=120,
        jobs=(Job(("torchrun", "finetune.py", "--lr", "0.1")), writer),
        commits=8,
        hosts=20,
        late_hosts={"node17": (0.8, 45_000_000, "fetch")},
        slow_commits={5: 0.14},
        write_slows=3.2,
        between_hours=6.0,
        length_ns=15 * 3600 * SECOND,
    )
    write_history(Path("history"), fleet)


def queried() -> None:
    """Two runs of four ranks; in the first, rank 3 takes 40 ms longer in each backward."""
    write_synthetic(["made-up", "--ranks", "4", "--steps", "20", "--late-rank", "3", "--late", "40"])
    write_synthetic(["other", "--ranks", "4", "--steps", "20"])


#: Page -> what makes the files that its commands read.
PAGES: dict[Path, Callable[[], None]] = {
    ROOT / "docs/guides/gate.md": gate,
    ROOT / "docs/guides/gpu-traces.md": gpu_traces,
    ROOT / "docs/guides/history.md": history,
    ROOT / "docs/guides/late-ranks.md": late_ranks,
    ROOT / "docs/guides/recommend.md": recommend,
    ROOT / "docs/guides/slowdown.md": slowdown,
    ROOT / "docs/guides/sql.md": queried,
}


def refreshed(page: Path) -> str:
    """A page with the output of today."""

    def block(found: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (.*)$", found[1], re.M)
        if not commands:
            return found[0]
        return "```\n" + "\n".join(f"$ {command}\n{output_of(command)}" for command in commands) + "```\n"

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            PAGES[page]()
            return re.sub(r"^```\w*\n(.*?)^```\n", block, page.read_text(encoding="utf-8"), flags=re.S | re.M)
        finally:
            os.chdir(before)


def main(arguments: list[str]) -> int:
    stale = 0
    for page in PAGES:
        fresh = refreshed(page)
        stale += page.read_text(encoding="utf-8") != fresh
        if "--check" not in arguments:
            page.write_text(fresh, encoding="utf-8")
    return int("--check" in arguments and stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
