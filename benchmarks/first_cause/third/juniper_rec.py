"""juniper_rec: session recommender fed from an iterable stream."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
ITEMS = 3000


class Sessions(IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def session(self, rng):
        at = rng.randrange(ITEMS)
        clicks = [at]
        for _ in range(rng.randint(12, 24)):
            jump = rng.randrange(-40, 41) if rng.random() < 0.9 else rng.randrange(ITEMS)
            at = (at + jump) % ITEMS
            clicks.append(at)
        return clicks

    def __iter__(self):
        rng = random.Random(1000 + self.rank)
        while True:
            clicks = self.session(rng)
            yield clicks[:-1][-20:], clicks[-1]


def pad(samples):
    longest = max(len(s[0]) for s in samples)
    items = torch.zeros(len(samples), longest, dtype=torch.long)
    weight = torch.zeros(len(samples), longest)
    for row, (clicks, _) in enumerate(samples):
        items[row, : len(clicks)] = torch.tensor(clicks)
        weight[row, : len(clicks)] = torch.linspace(0.2, 1.0, len(clicks))
    return items, weight, torch.tensor([s[1] for s in samples])


class Recommender(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, items, weight):
        pooled = (self.items(items) * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
        return self.mix(pooled) @ self.items.weight.t()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(Sessions(rank), batch_size=448, num_workers=1, collate_fn=pad)
    model = DistributedDataParallel(Recommender())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ticks = []
    for _step, (items, weight, target) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(items, weight), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"juniper_rec: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
