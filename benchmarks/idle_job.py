"""Jobs of ``bench_idle.py``: each writes the CPU time of its process and of its children between two steps.

    python benchmarks/idle_job.py KIND STEPS FILE [FOLDER]

``FILE-RANK`` gets nanoseconds: of CPU and of wall time, from the end of step ``WARM`` to the end of the last one, and
the median of these steps.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

WARM = 10
READ_BYTES = 64 << 10
READS_OF_STEP = 1000
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def tree_cpu_ns() -> int:
    """CPU time of this process and of its children that live, all of their threads."""
    children = [text for task in os.listdir("/proc/self/task") for text in _read(f"/proc/self/task/{task}/children")]
    total = time.process_time_ns()
    for child in {word for text in children for word in text.split()}:
        for task in os.listdir(f"/proc/{child}/task"):
            total += sum(int(text.split()[0]) for text in _read(f"/proc/{child}/task/{task}/schedstat"))
    return total


def _read(path: str) -> list[str]:
    try:
        return [Path(path).read_text()]
    except OSError:
        return []  # a thread that has ended


class Stopwatch:
    """Reads the clock of each step, and that of the CPU twice in the life of a job."""

    def __init__(self, steps: int, file: str) -> None:
        self._steps, self._file, self._step = steps, file, 0
        self._cpu_ns = 0
        self._ends_ns: list[int] = []

    def step_ends(self) -> None:
        """Count a step."""
        self._step += 1
        if self._step == WARM:
            self._cpu_ns = tree_cpu_ns()
        if self._step < WARM:
            return
        ends = self._ends_ns
        ends.append(time.monotonic_ns())
        if self._step == self._steps:
            cpu_ns = tree_cpu_ns() - self._cpu_ns
            median_ns = statistics.median(end - begin for begin, end in itertools.pairwise(ends))
            line = f"{cpu_ns} {ends[-1] - ends[0]} {median_ns:.0f}\n"
            Path(f"{self._file}-{os.environ.get('RANK', '0')}").write_text(line)


def reads(watch: Stopwatch, steps: int, folder: Path) -> None:
    """Read a file in the page cache again and again."""
    path = folder / "data"
    path.write_bytes(bytes(READ_BYTES * 16))
    buffer = bytearray(READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        for _ in range(steps):
            for number in range(READS_OF_STEP):
                if number % 16 == 0:
                    file.seek(0)
                file.readinto(buffer)
            watch.step_ends()


def small_steps(watch: Stopwatch, steps: int, folder: Path) -> None:
    """Train the smallest model there is: all of it is overhead of Python and torch."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(8 * steps, 16)), batch_size=8)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        watch.step_ends()


def small_ddp(watch: Stopwatch, steps: int, folder: Path) -> None:
    """Train a model of 16 layers with DDP in one process: its collectives cost what the library costs."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{os.getpid()}"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    plain = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(16)))
    model = torch.nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(8, 64)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        watch.step_ends()


def example(watch: Stopwatch, steps: int, folder: Path) -> None:
    """Run ``examples/train_ddp.py`` as it is."""
    sys.path.insert(0, str(EXAMPLES))
    import plain_clock

    end_step = plain_clock.PlainClock.end_step

    def counted(self: plain_clock.PlainClock) -> None:
        end_step(self)
        watch.step_ends()

    plain_clock.PlainClock.end_step = counted  # type: ignore[method-assign]
    script = str(EXAMPLES / "train_ddp.py")
    sys.argv = [script, "--data", str(folder / "images"), "--steps", str(steps), "--log-every", "100000"]
    runpy.run_path(script, run_name="__main__")


KINDS: dict[str, Callable[[Stopwatch, int, Path], None]] = {
    "reads": reads,
    "small_steps": small_steps,
    "small_ddp": small_ddp,
    "example": example,
}


def main() -> None:
    """Run one job."""
    kind, steps, file, *folder = sys.argv[1:]
    KINDS[kind](Stopwatch(int(steps), file), int(steps), Path(*folder))


if __name__ == "__main__":
    main()
