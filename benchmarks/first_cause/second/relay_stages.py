"""Machine translation encoder as three equal pipeline stages."""

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
B, D, MICRO = 96, 256, 4


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        for l in self.layers:
            x = x + torch.tanh(l(x))
        return x


def run_step(stage, rank, world, micro):
    kept = []
    for m in range(micro):
        if rank:
            x = torch.empty(B, D)
            dist.recv(x, rank - 1)
        else:
            x = torch.randn(B, D)
        x.requires_grad_()
        y = stage(x)
        if rank < world - 1:
            dist.send(y.detach(), rank + 1)
        kept.append((x, y))
    for x, y in kept:
        if rank < world - 1:
            g = torch.empty(B, D)
            dist.recv(g, rank + 1)
        else:
            g = y.detach() / y.numel()
        y.backward(g)
        if rank:
            dist.send(x.grad, rank - 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage()
    opt = torch.optim.Adam(stage.parameters(), 1e-4)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        run_step(stage, rank, world, MICRO)
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
