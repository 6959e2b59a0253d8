"""Moss-cover segmentation with a light loader."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 6


class Moss(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.d = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        return self.d(self.e(x))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    n = STEPS * BATCH * world
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, 48, 48, generator=g)
    data = TensorDataset(x, (x.mean(1) > 0).long())
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data), num_workers=1, persistent_workers=True)
    net = nn.parallel.DistributedDataParallel(Moss())
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    t0 = time.perf_counter()
    for xb, yb in loader:
        opt.zero_grad()
        F.cross_entropy(net(xb), yb).backward()
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
