"""Node embeddings from random walks over a citation graph held in Python objects."""

# SPDX-License-Identifier: Apache-2.0
import gc
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))


class Paper:
    def __init__(self, ident, year):
        self.ident = ident
        self.year = year
        self.cites = []
        self.meta = {"venue": ident % 40, "authors": [ident % 7, ident % 11]}


def build_graph(n, rng):
    papers = [Paper(i, 1980 + i * 40 // n) for i in range(n)]
    for p in papers:
        p.cites = [papers[rng.randrange(n)] for _ in range(6)]
    return papers


class Timed:
    """A scope which only adds up its time."""

    def __init__(self):
        self.total = 0.0

    def __enter__(self):
        self.t0 = time.perf_counter()
        return self

    def __exit__(self, *exc):
        self.total += time.perf_counter() - self.t0
        if self.total > 1e9:
            gc.collect()


class WalkScope:
    """Leaves no stale walk behind when the step is over."""

    def __init__(self):
        self.cost = 0.0
        self.walks = []

    def __enter__(self):
        self.walks = []
        return self.walks

    def __exit__(self, *exc):
        self.walks = []
        gc.collect(0)
        t0 = time.perf_counter()
        gc.collect()  # <- here
        self.cost += time.perf_counter() - t0
        return False


def walk(papers, rng, length):
    at = papers[rng.randrange(len(papers))]
    path = [at.ident]
    for _ in range(length - 1):
        at = at.cites[rng.randrange(len(at.cites))]
        path.append(at.ident)
    return path


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(rank)
    torch.manual_seed(0)
    gc.freeze()
    papers = build_graph(16_000, rng)
    table = nn.Embedding(len(papers), 32)
    tower = nn.Sequential(nn.Linear(32, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 32))
    opt = torch.optim.SGD([*table.parameters(), *tower.parameters()], lr=0.1)
    scope, prep = WalkScope(), Timed()
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        with scope as walks:  # <- also
            with prep:
                walks.extend(walk(papers, rng, 6) for _ in range(400))
            ids = torch.tensor(walks)
            here = tower(table(ids[:, :-1]))
            there = table(ids[:, 1:])
            noise = table(torch.randint(0, len(papers), there.shape[:2]))
            loss = nn.functional.softplus((here * noise).sum(-1) - (here * there).sum(-1)).mean()
            opt.zero_grad()
            loss.backward()
            for p in tower.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            opt.step()
    wall = time.perf_counter() - t0
    if rank == 0:
        print(f"loss {loss.item():.3f} walks {1e3 * prep.total / STEPS:.1f} ms/step")
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * scope.cost / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
