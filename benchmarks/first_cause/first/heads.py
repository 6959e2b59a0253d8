"""Trains a shared trunk with several task heads."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
TASKS = ["topic", "language", "toxicity", "title"]


class MultiTask(nn.Module):
    def __init__(self, width=448):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.heads = nn.ModuleDict({name: nn.Linear(width, 32) for name in TASKS})
        if "1" not in FIX:
            # kept so that old checkpoints load
            self.decoder = nn.Linear(width, 9000)

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


def timed_reduce(model, rounds=5):
    """What one exchange of the decoder's gradients costs, in seconds."""
    if not hasattr(model, "decoder"):
        return 0.0
    grads = torch.zeros(sum(p.numel() for p in model.decoder.parameters()))
    best = 1e9
    for _ in range(rounds):
        dist.barrier()
        t = time.perf_counter()
        dist.all_reduce(grads)
        grads /= 2
        best = min(best, time.perf_counter() - t)
    return best


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = MultiTask()
    exchange = timed_reduce(net)
    model = DDP(net, find_unused_parameters=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        task = TASKS[step % len(TASKS)]
        x = torch.randn(256, 448)
        y = torch.randint(0, 32, (256,))
        loss = nn.functional.cross_entropy(model(x, task), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={exchange * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
