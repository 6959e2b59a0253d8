"""A data-parallel job whose stalls are known: `five_steps_job.py --data DIR [--burn-ms B] [--file-bytes N] ...`.

Traced, it writes what its own clock says of each step beside the run directory (`five_steps_truth` reads it).
Everything happens one after the other (no workers, one bucket, no overlap of reading and computing), so that what is
injected is exposed in full: each rank reads `batch` files and burns CPU for each, and sends its gradients once a step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NICENESS = -15


def make_files(folder: Path, count: int, size_bytes: int) -> None:
    """Write the data set, synced to the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:04d}.bin"
        if not path.exists() or path.stat().st_size != size_bytes:
            with open(path, "wb") as file:
                file.write(os.urandom(size_bytes))
                os.fsync(file.fileno())


class Files(Dataset[torch.Tensor]):
    """Reads a file, and burns CPU on it."""

    def __init__(self, folder: Path, burn_ns: int) -> None:
        self.paths = sorted(folder.glob("*.bin"))
        self.burn_ns = burn_ns
        self.read_ns = self.burnt_ns = 0

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = time.perf_counter_ns()
        data = self.paths[index].read_bytes()
        read = time.perf_counter_ns()
        end = time.thread_time_ns() + self.burn_ns
        while time.thread_time_ns() < end:
            pass
        self.read_ns += read - begin
        self.burnt_ns += time.perf_counter_ns() - read
        return torch.frombuffer(bytearray(data[:256]), dtype=torch.uint8).float()


def progress_without_delay() -> None:
    """Let gloo's threads run as soon as something arrives, as a GPU's or an adapter's own engines do.

    A rank has one processor here, and burns it: a thread of the same priority that has to send on waits for the tick
    of the scheduler, 4 ms with HZ=250, in some steps and not in others (`benchmarks/bench_burnt_job.py`).
    """
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # needs the permission
            if "gloo" in (thread / "comm").read_text():
                os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", type=int, default=600)
    parser.add_argument("--file-bytes", type=int, default=256 << 10)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--burn-ms", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=512, help="4 * width^2 bytes of gradients in each of two layers")
    parser.add_argument("--compute-ms", type=float, default=10.0, help="burnt in each forward")
    parser.add_argument("--same-priority", action="store_true", help="gloo's threads wait for their turn")
    parser.add_argument("--steps", type=int, help="end after so many")
    options = parser.parse_args()
    with contextlib.suppress(OSError):  # what others on this machine would take from it is not injected
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        # Each session is scheduled as a group, and within one alone counts the line above.
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        make_files(options.data, options.files, options.file_bytes)
    dist.barrier()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(256, options.width), torch.nn.Linear(options.width, options.width))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1000)
    if not options.same_priority:
        progress_without_delay()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    files = Files(options.data, round(options.burn_ms * 1e6))
    epoch = step = 0
    run = os.environ.get("STASHTRACE_DIR", "")
    truth = open(f"{run}.truth-{dist.get_rank()}" if run else os.devnull, "w", buffering=1)  # noqa: SIM115
    while True:
        sampler: DistributedSampler[torch.Tensor] = DistributedSampler(files, seed=epoch)
        for batch in DataLoader(files, batch_size=options.batch, sampler=sampler):
            loss = model(batch).square().mean()
            end = time.thread_time_ns() + round(options.compute_ms * 1e6)
            while time.thread_time_ns() < end:
                pass
            begin = time.perf_counter_ns()
            loss.backward()
            backward_ns = time.perf_counter_ns() - begin
            optimizer.step()
            optimizer.zero_grad()
            truth.write(f"{step} {files.read_ns} {files.burnt_ns} {backward_ns} {time.perf_counter_ns()}\n")
            files.read_ns = files.burnt_ns = 0
            step += 1
            if step == options.steps:
                time.sleep(0.5)  # the other rank may still be receiving what this one sends
                return
        epoch += 1


if __name__ == "__main__":
    main()
