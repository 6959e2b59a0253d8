"""The obstacle course: run the example with one real fault at a time and compare two clocks.

Used by the tests next to it (one run each) and by benchmarks/ground_truth.py (several interleaved runs). Every
scenario says which kind must dominate on which rank; `Comparison` holds what the script's clock and stashtrace
say about the same steps of the same run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ground_truth import machine, plain_truth

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_ddp.py"
#: First on the path of jobs that compile nothing.
EAGER_JOBS = str(ROOT / "tests/support/eager_jobs")
LAUNCHER = Path(__file__).with_name("launch_ranks.py")

#: Steps at the start that are compared with nobody: first touches, first buckets, filling of the loader.
WARMUP_STEPS = 3
IMAGES = ("--images", "800", "--image-size", "96")
_MEMORY = Path("/dev/shm")
READ_LIMIT_BYTES_PER_S = 20 << 20
LINK_MEGABITS = 200


@dataclass(frozen=True)
class Scenario:
    """One fault: how to make it and what must be seen.

    Attributes
    ----------
    dominant : dict of int to str
        Rank -> the kind that takes most of its step.
    means : str
        What the machine must offer: "", "slow_link", "slow_disk" or "eviction".
    cause_rank : int
        The rank that straggler time must be blamed on, -1 if there is none to speak of.
    share : float
        What "most" means: the dominant kind takes more than this part of the step, or the run proves nothing.
    """

    name: str
    title: str
    options: tuple[str, ...]
    dominant: dict[int, str]
    workers: int = 0
    steps: int = 13
    means: str = ""
    link: str = "interconnect"
    cause_rank: int = -1
    share: float = 0.5


SCENARIOS = (
    Scenario(
        "fetch",
        "disk limited to 20 MiB/s, each image reads 256 KiB more from it",
        ("--inject-fetch-kib", "256"),
        {0: "fetch", 1: "fetch"},
        means="slow_disk",
    ),
    Scenario(
        "fetch_cold",
        "each image reads 8 MiB more, evicted from the page cache",
        ("--inject-fetch-kib", "8192"),
        {0: "fetch", 1: "fetch"},
        means="eviction",
    ),
    Scenario(
        "fetch_mapped",
        "each image touches 512 KiB more of a mapped file, evicted from the page cache",
        # A fault costs the thread about as long in CPU time, which is no fetch, as it waits; on a busy machine more.
        ("--inject-mmap-kib", "512"),
        {0: "fetch", 1: "fetch"},
        means="eviction",
        share=0.15,
    ),
    Scenario(
        "fetch_worker",
        "the same limit, reads in a DataLoader worker",
        ("--inject-fetch-kib", "256"),
        {0: "fetch", 1: "fetch"},
        workers=1,
        means="slow_disk",
        share=0.2,
    ),
    Scenario("prep", "10 ms of CPU burnt per image", ("--inject-prep-ms", "10"), {0: "prep", 1: "prep"}),
    Scenario(
        "prep_worker",
        "20 ms of CPU burnt per image, in a DataLoader worker",
        ("--inject-prep-ms", "20"),
        {0: "prep", 1: "prep"},
        workers=1,
    ),
    Scenario(
        "handoff",
        "half a million Python objects pickled with each batch",
        ("--inject-handoff-items", "500000"),
        {0: "handoff", 1: "handoff"},
        workers=1,
        share=0.3,
    ),
    Scenario(
        "straggler",
        "rank 1 sleeps 150 ms before its backward",
        ("--inject-straggler-ms", "150"),
        {0: "straggler", 1: "other"},
        cause_rank=1,
    ),
    Scenario(
        "straggler_by_hand",
        "the same, ten all-reduces called by the script",
        ("--inject-straggler-ms", "150", "--manual-all-reduce"),
        {0: "straggler", 1: "other"},
        cause_rank=1,
    ),
    Scenario(
        "network",
        f"two network namespaces, {LINK_MEGABITS} Mbit/s between them",
        (),
        {0: "network", 1: "network"},
        means="slow_link",
        link="network",
    ),
    Scenario(
        "interconnect",
        "64 MiB of gradients over loopback",
        ("--model-size", "large", "--batch-size", "1"),
        {0: "interconnect", 1: "interconnect"},
        share=0.15,
    ),
    Scenario(
        "checkpoint",
        "rank 0 saves 100 MiB more after each step",
        ("--checkpoint-every", "1", "--inject-checkpoint-mib", "100"),
        {0: "checkpoint", 1: "straggler"},
        cause_rank=0,
    ),
    Scenario(
        "everything",
        "5 ms of CPU per image in a worker, rank 1 late by 150 ms, 30 MiB saved after each step",
        # Later than rank 0 is after saving, on a slow disk too: that takes 30 to 100 ms.
        (
            *("--inject-prep-ms", "5", "--inject-straggler-ms", "150", "--checkpoint-every", "1"),
            *("--inject-checkpoint-mib", "30"),
        ),
        {0: "straggler", 1: "other"},
        workers=1,
        cause_rank=1,
        share=0.1,
    ),
)


@dataclass
class RankComparison:
    """Means over the compared steps of one rank, in ns per step."""

    rank: int
    steps_count: int
    wall_ns: float
    truth_ns: dict[str, float]
    traced_ns: dict[str, float]
    traced_wall_ns: float
    cause_ranks: dict[int, float] = field(default_factory=dict)

    def difference_percent(self, kind: str) -> float:
        """Traced minus truth, in percent of the step."""
        return 100 * (self.traced_ns.get(kind, 0) - self.truth_ns.get(kind, 0)) / self.wall_ns

    @property
    def kinds(self) -> list[str]:
        """All kinds that either side knows."""
        return sorted({*self.truth_ns, *self.traced_ns})


#: How tests run a scenario in a new folder: fixture ``compare`` of conftest.py.
Compare = Callable[[Scenario, Path], list[RankComparison]]


def write_images(folder: Path) -> None:
    """The image set of all scenarios."""
    command = [sys.executable, str(EXAMPLE), "--data", str(folder), *IMAGES, "--generate-only"]
    subprocess.run(command, check=True, timeout=300)


def run(scenario: Scenario, data: Path, out: Path, *, traced: bool = True) -> list[RankComparison]:
    """Run the example under stashtrace with the scenario's fault; compare, one result per rank.

    Raises `machine.Missing` when this machine cannot make the fault. With `traced=False` only the script's
    clock runs: the check that a fault really costs what it is meant to cost.
    """
    run_directory = out / "run"
    truth = out / "truth"
    if _MEMORY.is_dir():
        # The stopwatch must not wait for the disk that the scenario slows down.
        truth.symlink_to(tempfile.mkdtemp(prefix="stashtrace-truth-", dir=_MEMORY))
    script = [
        *(sys.executable, str(EXAMPLE), "--data", str(data), *IMAGES, "--truth", str(truth)),
        *("--model-size", "medium", "--batch-size", "8", "--bucket-mb", "1000", "--log-every", "1000"),
        *("--steps", str(scenario.steps), "--workers", str(scenario.workers), *scenario.options),
    ]
    if "--checkpoint-every" in scenario.options:
        script += ["--checkpoint", str(out / "checkpoint.pt")]
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(run_directory), "--"] if traced else []
    machine.warm(data)
    with _means(scenario, data) as (launch_options, limit):
        command = [*tracer, sys.executable, str(LAUNCHER), *launch_options, "--", *script]
        log = out / "log.txt"
        path = os.pathsep.join([EAGER_JOBS, str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=out,
                start_new_session=True,
                preexec_fn=limit.join if limit else None,
                env=dict(os.environ, PYTHONPATH=path),
            )
            try:
                if limit:
                    _wait_for_steps(process, truth)
                    limit.begin()
                code = process.wait(timeout=300)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
    if code:
        raise RuntimeError(f"{scenario.name}: exit code {code}\n{log.read_text()[-4000:]}")
    rows = [
        row for row in plain_truth.load(truth, link=scenario.link, workers=scenario.workers) if row.step >= WARMUP_STEPS
    ]
    return _compare(rows, run_directory) if traced else _truth_only(rows)


@contextlib.contextmanager
def _means(scenario: Scenario, data: Path) -> Iterator[tuple[list[str], machine.ReadLimit | None]]:
    if scenario.means == "slow_link":
        with machine.slow_link(LINK_MEGABITS) as link:
            yield link.launch_options, None
    elif scenario.means == "slow_disk":
        with machine.slow_disk(data, READ_LIMIT_BYTES_PER_S) as limit:
            yield [], limit
    else:
        if scenario.means == "eviction" and not machine.can_evict(data):
            raise machine.Missing("posix_fadvise(DONTNEED) does not empty the page cache here")
        yield [], None


def _wait_for_steps(process: subprocess.Popen[bytes], truth: Path) -> None:
    """Until every rank has finished its first step."""
    while process.poll() is None and not all((truth / f"rank-{rank}.jsonl").exists() for rank in (0, 1)):
        time.sleep(0.02)


def _compare(rows: list[plain_truth.StepTruth], run_directory: Path) -> list[RankComparison]:
    import stashtrace

    table = stashtrace.analyze(stashtrace.load(run_directory), "stalls", warmup=True)
    traced: dict[tuple[int, int], dict[str, int]] = {}
    causes: dict[tuple[int, int], tuple[int, int]] = {}
    for row in table.rows():
        key = (row["rank"], row["step"])
        traced.setdefault(key, {})[row["kind"]] = row["stall_ns"]
        if row["kind"] == "straggler":
            causes[key] = (row["cause_rank"], row["stall_ns"])
    results = _truth_only(rows)
    for result in results:
        steps = [(row.rank, row.step) for row in rows if row.rank == result.rank]
        for key in steps:
            for kind, stall_ns in traced.get(key, {}).items():
                result.traced_ns[kind] = result.traced_ns.get(kind, 0) + stall_ns / len(steps)
            cause, stall_ns = causes.get(key, (-1, 0))
            result.cause_ranks[cause] = result.cause_ranks.get(cause, 0) + stall_ns / len(steps)
        result.traced_wall_ns = sum(result.traced_ns.values())
    return results


def _truth_only(rows: list[plain_truth.StepTruth]) -> list[RankComparison]:
    results = []
    for rank in sorted({row.rank for row in rows}):
        own = [row for row in rows if row.rank == rank]
        kinds = {kind: sum(row.kinds[kind] for row in own) / len(own) for kind in own[0].kinds}
        results.append(RankComparison(rank, len(own), sum(row.wall_ns for row in own) / len(own), kinds, {}, 0.0))
    return results


def clean(out: Path) -> None:
    """Remove what a run left."""
    shutil.rmtree((out / "truth").resolve(), ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
