"""Trail-planning policy: beam search on one rank, heap sweeps on the other."""

# SPDX-License-Identifier: Apache-2.0
import gc
import heapq
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Beam:
    def __init__(self, width=360):
        self.width = width

    def expand(self, scores):
        paths = [(0.0, ())]
        for row in scores:
            grown = [(s + v, p + (k,)) for s, p in paths for k, v in enumerate(row)]
            paths = heapq.nlargest(self.width, grown)
        return paths[0]


class Memory:
    def __init__(self, n):
        self.trails = [{"steps": [i, i + 1], "who": (i, [i])} for i in range(n)]

    def sweep(self):
        return gc.collect()


def shared_mean(v):
    t = torch.tensor([v])
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(128, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, 16))
        self.net = nn.parallel.DistributedDataParallel(self.net)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.memory = Memory(20_000 if self.rank == 0 else 10)
        self.beam = Beam()

    def step(self, i):
        logits = self.net(torch.randn(240, 128))
        self.opt.zero_grad()
        loss = logits.square().mean()
        loss.backward()
        if self.rank == 0 and i % 4 == 3 and "1" not in FIX:
            self.memory.sweep()
        shared_mean(loss.item())
        self.opt.step()
        if self.rank == 1 and "2" not in FIX:
            self.beam.expand(logits[:10].tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = Trainer()
    dist.barrier()
    t0 = time.perf_counter()
    for i in range(STEPS):
        t.step(i)
    dist.barrier()
    if t.rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.destroy_process_group()
