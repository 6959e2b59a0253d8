"""Wind-field downscaling with a home-made normaliser."""

# SPDX-License-Identifier: Apache-2.0
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Normaliser:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def apply(self, field):
        if "1" in FIX:
            return ((field - self.mean) / self.std).clamp(-4, 4)
        values = field.flatten().tolist()
        shifted = [max(-4.0, min(4.0, (v - self.mean) / self.std)) for v in values]
        return torch.tensor(shifted).view_as(field)


class Downscale(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 32, 3, padding=1)
        self.b = nn.Conv2d(32, 32, 3, padding=1)
        self.c = nn.Conv2d(32, 8, 3, padding=1)
        self.up = nn.PixelShuffle(2)

    def forward(self, x):
        x = torch.relu(self.a(x))
        x = x + torch.relu(self.b(x))
        return self.up(self.c(x))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(Downscale())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    norm = Normaliser(0.5, math.sqrt(2))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    t0 = time.perf_counter()
    for _ in range(STEPS):
        coarse = norm.apply(torch.randn(8, 2, 48, 48))
        opt.zero_grad()
        fine = net(coarse)
        nn.functional.l1_loss(fine, nn.functional.interpolate(coarse, scale_factor=2)).backward()
        opt.step()
        sched.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
