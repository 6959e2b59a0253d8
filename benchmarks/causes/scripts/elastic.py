"""Train on shards of unequal length: the ranks with less data have fewer steps.

    torchrun --nproc-per-node 2 elastic.py --clock FOLDER --steps 80,50

``Join`` of torch lets a rank that has no data left take part in the all-reduces of the others.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train until each rank has seen its data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", default="80,50", help="of each rank")
    parser.add_argument("--fault", action="append", default=[])
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    watch = Stopwatch(options.clock, rank)
    faults = Faults(options.fault, watch, world, options.clock)
    with Join([model]):
        for step in range(int(options.steps.split(",")[rank])):
            loss = model(torch.randn(128, 512)).pow(2).mean()
            faults.strike("forward", step)
            watch.arrive("all_reduce")
            loss.backward()
            optimizer.step()
            watch.end_step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
