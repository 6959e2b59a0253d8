"""Train a policy: act in an environment on the step thread, then update.

torchrun --nproc-per-node 2 policy.py --clock FOLDER [--fault 1:python:40:always:environment]
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Act eight times, then update once, again and again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--fault", action="append", default=[], help="strikes once per rollout, at ``environment``")
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    policy: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))
    wrapped = DistributedDataParallel(policy) if world > 1 else policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    watch = Stopwatch(options.clock, rank)
    faults = Faults(options.fault, watch, world, options.clock)
    for step in range(options.steps):
        states = [torch.zeros(32, 64)]
        with torch.no_grad():
            for turn in range(8):
                action = policy(states[-1])
                if turn == 4:
                    faults.strike("environment", step)
                states.append(action.tanh())
        loss = wrapped(torch.cat(states * 4)).pow(2).mean()
        watch.arrive("all_reduce")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.end_step()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
