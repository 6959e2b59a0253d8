"""Train from a DataLoader, alone or with DistributedDataParallel.

    python loader.py --clock FOLDER --workers 1 --sample-ms 4 [--epochs 4] ...

``--slow RANK:MS`` makes the samples of one rank slower, ``--slow-worker N:MS`` those of one worker, ``--burst N:MS``
every Nth batch.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

WIDTH = 512


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60, help="of all epochs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sample-ms", type=float, default=0.0)
    parser.add_argument("--slow", default="-1:0", metavar="RANK:MS")
    parser.add_argument("--slow-worker", default="-1:0", metavar="N:MS")
    parser.add_argument("--burst", default="0:0", metavar="N:MS")
    parser.add_argument(
        "--repeat", type=int, default=8, help="forwards and backwards of a batch: the compute of a step"
    )
    parser.add_argument("--fault", action="append", default=[])
    return parser.parse_args()


class Pictures(Dataset[torch.Tensor]):
    """Samples that take time to prepare."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self.options = options
        slow_rank, slow_ms = options.slow.split(":")
        self.sample_ms = float(slow_ms) if int(slow_rank) == rank else options.sample_ms

    def __len__(self) -> int:
        return int(self.options.batch * (self.options.steps // self.options.epochs))

    def __getitem__(self, index: int) -> torch.Tensor:
        milliseconds = self.sample_ms
        info = get_worker_info()
        worker, worker_ms = self.options.slow_worker.split(":")
        if info is not None and info.id == int(worker):
            milliseconds = float(worker_ms)
        every, burst_ms = self.options.burst.split(":")
        if int(every) and (index // self.options.batch) % int(every) == int(every) - 1:
            milliseconds = float(burst_ms)
        if milliseconds:
            time.sleep(milliseconds / 1e3)
        return torch.ones(WIDTH)


def timed(loader: DataLoader[Any], watch: Stopwatch) -> Iterator[torch.Tensor]:
    """Yield the batches, and time the wait for each."""
    with watch.piece("batches"), watch.piece("start"):
        iterator = iter(loader)
    while True:
        with watch.piece("batches"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def main() -> None:
    """Train."""
    options = parse_options()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    model: torch.nn.Module = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    wrapped = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    watch = Stopwatch(options.clock, rank)
    faults = Faults(options.fault, watch, world, options.clock)
    loader = DataLoader(
        Pictures(options, rank),
        options.batch,
        num_workers=options.workers,
        persistent_workers=options.persistent,
    )
    step = 0
    for _ in range(options.epochs):
        for batch in timed(loader, watch):
            faults.strike("data", step)
            loss = wrapped(batch.repeat(options.repeat, 1)).pow(2).mean()
            faults.strike("forward", step)
            watch.arrive("all_reduce")
            loss.backward()
            optimizer.step()
            watch.end_step()
            optimizer.zero_grad()
            faults.strike("log", step)
            step += 1
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
