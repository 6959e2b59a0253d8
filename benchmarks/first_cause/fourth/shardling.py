"""Nest-count network, fully sharded over two ranks."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = int(os.environ.get("STEPS", "40"))


class Nest(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.inp = nn.Linear(40, d)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(3))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.body:
            x = x + b(x)
        return self.out(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = Nest()
    for b in net.body:
        fully_shard(b, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    t0 = time.perf_counter()
    for _ in range(STEPS):
        opt.zero_grad()
        net(torch.randn(512, 40)).square().mean().backward()
        opt.step()
    if dist.get_rank() == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
