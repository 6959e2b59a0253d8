"""Node classification with sampled neighbourhoods prepared by a helper thread."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import queue
import random
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
NODES, F, FAN = 4000, 128, 8


class NeighbourSampler:
    def __init__(self, rank, seed):
        self.rng = random.Random(seed)
        hubs = rank == 1 and "1" not in FIX
        self.adj = [
            [self.rng.randrange(NODES) for _ in range(600 if hubs and i % 4 == 0 else 16)] for i in range(NODES)
        ]

    def sample(self, roots):
        picked = []
        for r in roots:
            near = sorted(set(self.adj[r]), key=lambda n: (n * 7919) % 1009)
            self.rng.shuffle(near)
            picked.append([near[i % len(near)] for i in range(FAN)])
        return picked


class Prefetcher(threading.Thread):
    def __init__(self, sampler, batch):
        super().__init__(daemon=True)
        self.sampler, self.batch = sampler, batch
        self.todo, self.done = queue.Queue(1), queue.Queue(1)

    def run(self):
        while self.todo.get():
            roots = [self.sampler.rng.randrange(NODES) for _ in range(self.batch)]
            c = time.perf_counter()
            got = self.sampler.sample(roots)
            spent["sample"] += time.perf_counter() - c
            self.done.put((torch.tensor(roots), torch.tensor(got)))

    def next(self):
        self.todo.put(True)
        return self.done.get()


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.agg = nn.Linear(F, 512), nn.Linear(F, 512)
        self.mid = nn.Linear(512, 512)
        self.out = nn.Linear(512, 7)

    def forward(self, x, nb):
        h = torch.relu(self.own(x) + self.agg(nb.mean(1)))
        return self.out(torch.relu(self.mid(h)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    feats = torch.randn(NODES, F)
    labels = torch.randint(0, 7, (NODES,))
    fetch = Prefetcher(NeighbourSampler(rank, 5 + rank), 384)
    fetch.start()
    ddp = DDP(Sage())
    opt = torch.optim.Adam(ddp.parameters(), 1e-3)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        roots, near = fetch.next()
        loss = nn.functional.cross_entropy(ddp(feats[roots], feats[near]), labels[roots])
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
    fetch.todo.put(False)
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
