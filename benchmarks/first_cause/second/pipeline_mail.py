"""Mail classifier as a three-stage pipeline with micro-batches."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
WIDTH, MICRO, ROWS = 256, 4, 96


class ActivationAudit:
    """Keeps running moments of what leaves the stage."""

    def __init__(self):
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def update(self, act):
        for v in act[:64].flatten().tolist():
            self.n += 1
            d = v - self.mean
            self.mean += d / self.n
            self.m2 += d * (v - self.mean)

    def std(self):
        return math.sqrt(self.m2 / max(1, self.n))


class Stage(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, 2) if last else nn.Identity()

    def forward(self, x):
        return self.head(self.net(x))


class Pipe:
    def __init__(self, stage, rank, world, audit):
        self.stage, self.rank, self.world, self.audit = stage, rank, world, audit

    def forward(self, m):
        if self.rank:
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        else:
            x = torch.randn(ROWS, WIDTH)
        y = self.stage(x)
        if self.rank < self.world - 1:
            dist.send(y.detach(), self.rank + 1)
            if self.audit is not None:
                c = time.perf_counter()
                self.audit.update(y.detach())
                spent["audit"] += time.perf_counter() - c
        return x, y

    def backward(self, x, y):
        if self.rank == self.world - 1:
            nn.functional.cross_entropy(y, torch.randint(0, 2, (ROWS,))).backward()
        else:
            g = torch.empty_like(y)
            dist.recv(g, self.rank + 1)
            y.backward(g)
        if self.rank:
            dist.send(x.grad, self.rank - 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank == world - 1)
    opt = torch.optim.SGD(stage.parameters(), lr=0.01)
    audit = ActivationAudit() if rank == 1 and "1" not in FIX else None
    pipe = Pipe(stage, rank, world, audit)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        kept = [pipe.forward(m) for m in range(MICRO)]
        for x, y in kept:
            pipe.backward(x, y)
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
