"""The example with a chosen share of its files in the page cache, and its clock: truth for `whatif-cache`.

One run is one epoch, so the share set before it holds until the end. The files are padded behind the end of their
JPEG, which decoders skip: two cores cannot decode what a disk brings. (A disk slowed by a blkio cgroup would not do:
while nobody reads it saves up what it may bring later, so its rate depends on the work between reads.)
`in_little_memory` runs several epochs in a memory cgroup instead, and lets the kernel choose what stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ground_truth import machine

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_ddp.py"
IMAGES_COUNT, BATCH, WARMUP_STEPS = 1000, 32, 5
PADDING_BYTES = 1 << 20
#: Other work on the machine shall not count as preparing.
NICENESS = -15
IMAGES = ["--images", str(IMAGES_COUNT), "--image-size", "400"]
#: The example holds a tenth out for validation.
EPOCH_STEPS = (IMAGES_COUNT - IMAGES_COUNT // 10) // BATCH


@dataclass(frozen=True)
class Truth:
    """What the script's clock says.

    `step_ns` is the mean over the counted steps, `resident` the share of the training bytes in the page cache before
    the run (or, in little memory, its mean while they ran).
    """

    step_ns: float
    resident: float


def write_images(folder: Path) -> None:
    """The image set, once."""
    _call([sys.executable, str(EXAMPLE), "--data", str(folder), *IMAGES, "--generate-only"])
    for path in folder.glob("image-*"):
        if path.stat().st_size < PADDING_BYTES:
            with open(path, "ab") as file:
                file.write(os.urandom(PADDING_BYTES))


def training_files(folder: Path) -> list[Path]:
    """Those that the example trains on."""
    files = sorted(folder.glob("image-*"))
    return files[len(files) // 10 :]


def resident_ratio(files: list[Path]) -> float:
    """Share of the bytes of these files in the page cache, by mincore."""
    sizes = [file.stat().st_size for file in files]
    return sum(size * machine.resident_share(file) for size, file in zip(sizes, files, strict=True)) / sum(sizes)


@contextlib.contextmanager
def cached_share(folder: Path, share: float, seed: int) -> Iterator[float]:
    """Hold a random part of the training files in the page cache, evict the rest, and give what mincore then says."""
    files = training_files(folder)
    mixed = random.Random(seed).sample(files, len(files))
    cached = round(share * len(files))
    for file in mixed[cached:]:
        machine.evict(file)
    with machine.held(mixed[:cached]):
        yield _checked(files, share)


def _checked(files: list[Path], share: float) -> float:
    found = resident_ratio(files)
    if abs(found - share) > 0.03:
        raise machine.Missing(f"{share:.0%} cached was asked for, mincore says {found:.0%}")
    return found


def one_epoch(folder: Path, out: Path, share: float, *, workers: int, seed: int, traced: bool = False) -> Truth:
    """One epoch with this share cached; with `traced`, the run is left in `out / "run"`."""
    truth = out / "truth"
    with cached_share(folder, share, seed) as resident:
        _call(_command(folder, truth, out, workers, EPOCH_STEPS, traced))
    return Truth(_step_ns(truth, WARMUP_STEPS), resident)


def in_little_memory(
    folder: Path, out: Path, cache_bytes: int, *, workers: int, epochs: int, traced: bool = True
) -> Truth:
    """Several epochs whose page cache is limited after the first steps; the first epoch is not counted."""
    with cached_share(folder, 0.0, 0):
        pass
    truth = out / "truth"
    files = training_files(folder)
    seen: list[tuple[int, float]] = []
    with machine.little_memory() as memory:
        command = _command(folder, truth, out, workers, epochs * EPOCH_STEPS, traced)
        with _process(command, memory.join) as process:
            while process.poll() is None and _steps_done(truth) < WARMUP_STEPS:
                time.sleep(0.05)
            memory.begin(cache_bytes)
            while process.poll() is None:
                seen.append((_steps_done(truth), resident_ratio(files)))
                time.sleep(0.5)
    counted = [share for step, share in seen if step >= EPOCH_STEPS]
    return Truth(_step_ns(truth, EPOCH_STEPS), statistics.mean(counted))


def _command(folder: Path, truth: Path, out: Path, workers: int, steps: int, traced: bool) -> list[str]:
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(out / "run"), "--"] if traced else []
    return [
        *(*tracer, sys.executable, str(EXAMPLE), "--data", str(folder), *IMAGES, "--truth", str(truth)),
        *("--steps", str(steps), "--batch-size", str(BATCH), "--workers", str(workers), "--log-every", "100000"),
    ]


def _call(command: list[str], join: Callable[[], None] | None = None) -> None:
    with _process(command, join) as process:
        process.wait(timeout=600)


@contextlib.contextmanager
def _process(command: list[str], join: Callable[[], None] | None) -> Iterator[subprocess.Popen[str]]:
    """A child in its group; an exit code other than 0 is an error with the end of what it said."""

    def prepare() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
            # Where sessions are scheduled as groups, niceness counts within one alone.
            Path("/proc/self/autogroup").write_text(str(NICENESS))
        if join:
            join()

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=prepare,
        start_new_session=True,
        env=dict(
            os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        ),
    )
    try:
        yield process
        said, _ = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {said[-2000:]}")


def _rows(truth: Path) -> list[dict[str, int]]:
    path = truth / "rank-0.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _steps_done(truth: Path) -> int:
    path = truth / "rank-0.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _step_ns(truth: Path, first: int) -> float:
    rows = [row for row in _rows(truth) if row["step"] >= first]
    return (rows[-1]["end_ns"] - rows[0]["begin_ns"]) / len(rows)
