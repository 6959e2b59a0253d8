"""Glaze-colour network with a guarded scaling written as a custom function."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
DEBUG = False


class GuardedScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        if DEBUG:
            bad = 0
            for row in grad:
                if not torch.isfinite(row).all() or row.abs().max() > 1e6:
                    bad += 1
            assert bad == 0
        return grad * ctx.scale, None


class Glaze(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(64, 512)
        self.mid = nn.Linear(512, 512)
        self.out = nn.Linear(512, 3)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        x = GuardedScale.apply(x, 0.5)
        return self.out(torch.relu(self.mid(x)))


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
DEBUG = rank == 0 and "1" not in FIX
net = nn.parallel.DistributedDataParallel(Glaze())
opt = torch.optim.SGD(net.parameters(), lr=0.02)
t0 = time.perf_counter()
for _ in range(STEPS):
    x = torch.rand(1000, 64)
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()
if rank == 0:
    print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
dist.barrier()
dist.destroy_process_group()
