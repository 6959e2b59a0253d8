"""Mixture of four experts; tokens travel by an even all-to-all."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "40"))
TOKENS, D = 256, 128


def exchange(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous())
    return out


class Expert:
    def __init__(self, rank):
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, D))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self):
        there = exchange(torch.randn(TOKENS, D))
        self.opt.zero_grad()
        y = self.net(there)
        (y - there).square().mean().backward()
        self.opt.step()
        return exchange(y.detach())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    e = Expert(rank)
    t0 = time.perf_counter()
    for _ in range(STEPS):
        for _ in range(2):
            e.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
