"""Joinery part matcher with stratified batches and double-precision averaging."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 64


class StrataBatches:
    """Batch sampler: one part of every stratum, the least used first."""

    def __init__(self, n, strata, seed):
        self.rng = random.Random(seed)
        self.used = [0] * n
        self.strata = [list(range(s, n, strata)) for s in range(strata)]

    def least_used(self, members):
        ranked = sorted(members, key=lambda i: (self.used[i], self.rng.random()))
        self.used[ranked[0]] += 1
        return ranked[0]

    def any_of(self, members):
        return self.rng.choice(members)

    def __iter__(self):
        pick = self.any_of if "1" in FIX else self.least_used
        for _ in range(STEPS):
            yield [pick(m) for m in self.strata]

    def __len__(self):
        return STEPS


def average_double(ps, world):
    flat = torch.cat([p.grad.view(-1).double() for p in ps])
    copies = torch.cat([flat, flat.abs(), flat.square()])
    dist.all_reduce(copies)
    put_back(ps, (copies[: flat.numel()] / world).float())


def average_single(ps, world):
    flat = torch.cat([p.grad.view(-1) for p in ps])
    dist.all_reduce(flat)
    put_back(ps, flat / world)


def put_back(ps, flat):
    for p, g in zip(ps, flat.split([p.numel() for p in ps]), strict=False):
        p.grad.copy_(g.view_as(p))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    data = TensorDataset(torch.randn(25_600, 96))
    net = nn.Sequential(nn.Linear(96, 512), nn.ReLU(), nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 96))
    ps = list(net.parameters())
    opt = torch.optim.SGD(ps, lr=0.02)
    average = average_single if "2" in FIX else average_double
    t0 = time.perf_counter()
    for (x,) in DataLoader(data, batch_sampler=StrataBatches(25_600, BATCH, rank)):
        x = x.repeat(4, 1)
        opt.zero_grad()
        (net(x) - x).square().mean().backward()
        average(ps, world)
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
