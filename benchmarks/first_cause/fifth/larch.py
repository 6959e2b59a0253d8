"""Wavelet-ish convolution stack on sensor windows, two ranks on one box."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


def settle():
    wanted = int(os.environ.get("TRAIN_THREADS", 4))
    torch.set_num_threads(1 if "1" in os.environ.get("FIX", "") else wanted)


class Stack(nn.Module):
    def __init__(self, depth=5, ch=48):
        super().__init__()
        self.first = nn.Conv1d(6, ch, 5, padding=2)
        self.rest = nn.ModuleList(nn.Conv1d(ch, ch, 5, padding=2) for _ in range(depth))
        self.norms = nn.ModuleList(nn.GroupNorm(8, ch) for _ in range(depth))
        self.out = nn.Linear(ch, 5)

    def forward(self, x):
        h = self.first(x)
        for c, n in zip(self.rest, self.norms):
            h = h + torch.relu(n(c(h)))
        return self.out(h.mean(-1))


def main():
    settle()
    dist.init_process_group("gloo")
    steps = int(os.environ.get("STEPS", 30))
    net = nn.parallel.DistributedDataParallel(Stack())
    opt = torch.optim.AdamW(net.parameters())
    ticks = []
    for i in range(steps):
        x, y = torch.randn(12, 6, 200), torch.randint(0, 5, (12,))
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
        ticks.append(time.perf_counter())
    if dist.get_rank() == 0:
        print("mean step %.1f ms" % ((ticks[-1] - ticks[2]) / (steps - 3) * 1e3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
