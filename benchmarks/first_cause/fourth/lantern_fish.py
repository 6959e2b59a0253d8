"""Deep-sea agent learning from an in-memory replay; tidies the heap as it goes."""

# SPDX-License-Identifier: Apache-2.0
import gc
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Replay:
    def __init__(self, size, seed):
        rng = random.Random(seed)
        self.rng = rng
        self.cells = [[[rng.random() for _ in range(3)], {"r": rng.random()}] for _ in range(size)]

    def draw(self, n):
        picked = self.rng.choices(self.cells, k=n)
        return (torch.tensor([c[0] for c in picked]), torch.tensor([c[1]["r"] for c in picked]))


def tidy_heap():
    gc.collect()


def train(rank):
    replay = Replay(30_000, rank)
    net = DDP(
        nn.Sequential(
            nn.Linear(3, 256),
            nn.Tanh(),
            nn.Linear(256, 512),
            nn.Tanh(),
            nn.Linear(512, 512),
            nn.Tanh(),
            nn.Linear(512, 1),
        )
    )
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    dist.barrier()
    t = time.perf_counter()
    for step in range(STEPS):
        s, r = replay.draw(512)
        loss = (net(s).squeeze(1) - r).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 6 == 5 and "1" not in FIX:
            tidy_heap()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t) / STEPS * 1e3:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
