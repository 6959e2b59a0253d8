"""Card-sequence model; a weighted deck is cut anew at the head of every epoch."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
EPOCH = 10
BATCH = 56


class Hands(Dataset):
    def __len__(self):
        return 80_000

    def __getitem__(self, i):
        return torch.arange(i, i + 20) % 52


class WeightedDeck(Sampler):
    def __init__(self, n, take, rank):
        self.n, self.take, self.rng = n, take, random.Random(rank)

    def cut(self):
        keyed = [(self.rng.random() ** (1.0 / (1 + i % 5)), i) for i in range(self.n)]
        keyed.sort(reverse=True)
        return [i for _, i in keyed[: self.take]]

    def quick_cut(self):
        return self.rng.sample(range(self.n), self.take)

    def __iter__(self):
        yield from (self.quick_cut() if "1" in FIX else self.cut())

    def __len__(self):
        return self.take


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(52, 64)
        self.enc = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.out = nn.Linear(64, 52)

    def forward(self, t):
        return self.out(self.enc(self.emb(t)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(Player())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    loader = DataLoader(Hands(), BATCH, sampler=WeightedDeck(80_000, EPOCH * BATCH, rank))
    t0, n = time.perf_counter(), 0
    while n < STEPS:
        for t in loader:
            opt.zero_grad()
            out = net(t)
            nn.functional.cross_entropy(out[:, :-1].reshape(-1, 52), t[:, 1:].reshape(-1)).backward()
            opt.step()
            n += 1
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / n * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
