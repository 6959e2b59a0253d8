"""Catflap detector with an activation histogram on one rank's forward hook."""

# SPDX-License-Identifier: Apache-2.0
import os
import time
from collections import Counter

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class HistogramTap:
    def __init__(self, every):
        self.every, self.calls, self.bins = every, 0, Counter()

    def __call__(self, module, args, out):
        self.calls += 1
        if self.calls % self.every:
            return
        for v in out.detach().flatten()[:120_000].tolist():
            self.bins[int(v * 4)] += 1


def make():
    return nn.Sequential(
        nn.Conv2d(3, 20, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(20, 40, 3),
        nn.ReLU(),
        nn.Conv2d(40, 40, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 2),
    )


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = make()
    if rank == 1 and "1" not in FIX:
        net[2].register_forward_hook(HistogramTap(every=2))
    net = DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loss_fn = nn.CrossEntropyLoss()
    t0 = time.perf_counter()
    for _i in range(STEPS):
        x, y = torch.randn(12, 3, 48, 48), torch.randint(0, 2, (12,))
        opt.zero_grad()
        loss_fn(net(x), y).backward()
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
