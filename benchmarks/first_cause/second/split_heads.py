"""Tensor-parallel feed-forward blocks: columns then rows, two reductions per block."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
D, HIDDEN, DEPTH = 256, 1024, 3


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Block(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.up = nn.Linear(D, HIDDEN // world)
        self.down = nn.Linear(HIDDEN // world, D, bias=False)

    def forward(self, x):
        return x + Reduce.apply(self.down(torch.relu(self.up(Copy.apply(x)))))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3 + rank)
    net = nn.Sequential(*[Block(world) for _ in range(DEPTH)])
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    data = torch.Generator().manual_seed(0)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x = torch.randn(256, D, generator=data)
        net(x).pow(2).mean().backward()
        opt.step()
        opt.zero_grad()
        times.append(time.perf_counter() - t0)
    finish(times)


def finish(times):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(spent))
    if dist.get_rank() == 0:
        kept = times[5:]
        keys = sorted({k for e in everyone for k in e})
        body = {
            "step_ms": round(1e3 * sum(kept) / len(kept), 2),
            "per_step_ms": {k: [round(1e3 * e.get(k, 0.0) / len(times), 2) for e in everyone] for k in keys},
        }
        print("TRUTH " + json.dumps(body), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
