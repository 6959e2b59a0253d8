"""A training loop of several epochs with two workers per rank. Prints its mean step in ms, warm-up left out.

    workers_job.py [--workers 2] [--epochs 6] [--start-ms 0] [--slow-ms 2] [--kept]

``--start-ms``: a worker takes so long to get ready. ``--slow-ms``: worker 1 takes so long for a batch, the others 2 ms.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info

WARMUP, STEP_S, QUICK_MS = 5, 0.01, 2.0


class Samples(Dataset):  # type: ignore[type-arg]
    """One sample is one batch."""

    def __init__(self, length: int, slow_ms: float) -> None:
        self.length, self.slow_ms = length, slow_ms

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        time.sleep((self.slow_ms if info is not None and info.id == 1 else QUICK_MS) / 1e3)
        return torch.randn(64, 256)


class Start:
    """What a new worker does first."""

    def __init__(self, start_ms: float) -> None:
        self.start_ms = start_ms

    def __call__(self, worker: int) -> None:
        time.sleep(self.start_ms / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="of an epoch")
    parser.add_argument("--start-ms", type=float, default=0.0)
    parser.add_argument("--slow-ms", type=float, default=QUICK_MS)
    parser.add_argument("--kept", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Samples(options.steps, options.slow_ms),
        batch_size=None,
        num_workers=options.workers,
        persistent_workers=options.kept,
        worker_init_fn=Start(options.start_ms),
    )
    ends = []
    for _ in range(options.epochs):
        for batch in loader:
            loss = model(batch).square().mean()
            time.sleep(STEP_S)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.perf_counter())
    if os.environ["RANK"] == "0":
        print(f"step_ms {1e3 * (ends[-1] - ends[WARMUP - 1]) / (len(ends) - WARMUP):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
