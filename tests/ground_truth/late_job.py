"""A data-parallel job in which one rank is late on request, with a stopwatch around what keeps it.

    late_job.py KIND FILE OUT        KIND: compute, gc, sleep, checkpoint or fetch

Each FAULT_EVERY-th step the fault happens on FAULTY rank (checkpoint: rank 0); OUT/clock-RANK.jsonl has its length.
fetch: the second worker of the rank reads FILE, evicted from the page cache, for one of its batches.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from late_plan import FAULTY, STEPS, faulty_step
from torch.utils.data import DataLoader, Dataset, get_worker_info

FAULT_S = 0.12


class Samples(Dataset):
    """One sample is one batch; some of them read the big file."""

    def __init__(self, kind: str, file: str, out: str, rank: int) -> None:
        self.kind, self.file, self.out, self.rank = kind, file, out, rank

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.kind == "fetch" and self.rank == FAULTY and faulty_step(index):
            info = get_worker_info()
            descriptor = os.open(self.file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.monotonic_ns()
            while os.read(descriptor, 4 << 20):
                pass
            note(self.out, self.rank, index, time.monotonic_ns() - begin, info.id)
            os.close(descriptor)
        return torch.randn(64, 256)


def note(out: str, rank: int, step: int, spent_ns: int, worker: int = -1) -> None:
    with open(Path(out) / f"clock-{rank}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "spent_ns": spent_ns, "worker": worker}) + "\n")


def fault(kind: str, out: str, rank: int, step: int, heap: list[object]) -> None:
    """Keep this rank from its backward."""
    if not faulty_step(step) or kind == "fetch" or rank != (0 if kind == "checkpoint" else FAULTY):
        return
    # Of CPU burnt, what counts is the CPU: standing in the run queue for it is another cause.
    clock = time.thread_time_ns if kind == "compute" else time.monotonic_ns
    weights = torch.zeros((40 << 20) if kind == "checkpoint" else 0, dtype=torch.uint8)
    begin = clock()
    if kind == "sleep":
        time.sleep(FAULT_S)
    elif kind == "compute":
        until = time.thread_time() + FAULT_S
        while time.thread_time() < until:
            pass
    elif kind == "gc":
        gc.collect()
    elif kind == "checkpoint":
        torch.save({"weights": weights}, Path(out) / "late.pt")
    note(out, rank, step, clock() - begin)


def main() -> None:
    kind, file, out = sys.argv[1:4]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    heap: list[object] = [[i] for i in range(1_500_000)] if kind == "gc" else []
    gc.disable()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples(kind, file, out, rank), batch_size=None, num_workers=2, prefetch_factor=1)
    for step, batch in enumerate(loader):
        time.sleep(0.01)
        loss = model(batch).square().mean()
        fault(kind, out, rank, step, heap)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
