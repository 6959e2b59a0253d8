"""Sharded seabird-track transformer with gradient accumulation over micro-batches."""

# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
MICRO = 3


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.n(x))))


class Tracks(nn.Module):
    def __init__(self, d=192, n=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.head = nn.Linear(d, 2)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def great_circle_check(points):
    """Length of the flown way, leg by leg, on the reporting rank."""
    total = 0.0
    rows = points.reshape(-1, 2).tolist()
    for (a, b), (c, d) in itertools.pairwise(rows):
        total += ((a - c) ** 2 + (b - d) ** 2) ** 0.5
    return total


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(7)
    net = Tracks()
    for b in net.blocks:
        fully_shard(b, mesh=mesh, reshard_after_forward=False)
    fully_shard(net, mesh=mesh, reshard_after_forward=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    track = torch.randn(50_000, 2)
    t0 = time.perf_counter()
    for step in range(STEPS):
        opt.zero_grad()
        for m in range(MICRO):
            last = m == MICRO - 1
            if "1" in FIX:
                net.set_requires_gradient_sync(last)
                net.set_reshard_after_backward(last)
            (net(torch.randn(48, 192)).square().mean() / MICRO).backward()
        opt.step()
        if rank == 1 and step % 3 == 2 and "2" not in FIX:
            great_circle_check(track)
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
