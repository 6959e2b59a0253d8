"""Place-name speller with tiny epochs and an edit-distance metric."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
EPOCH = 5
BATCH = 32
T = 40


class Names(Dataset):
    def __len__(self):
        return EPOCH * BATCH

    def __getitem__(self, i):
        return torch.randint(1, 30, (T,), generator=torch.Generator().manual_seed(i))


class SpellingError:
    def __init__(self):
        self.total = self.count = 0

    def update(self, guess, truth):
        for g, t in zip(guess.tolist(), truth.tolist(), strict=False):
            self.total += self.distance(g, t)
            self.count += 1

    @staticmethod
    def distance(a, b):
        row = list(range(len(b) + 1))
        for i, ca in enumerate(a, 1):
            prev, row[0] = row[0], i
            for j, cb in enumerate(b, 1):
                prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (ca != cb))
        return row[-1]


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 128)
        self.rnn = nn.GRU(128, 80, batch_first=True)
        self.out = nn.Linear(80, 30)

    def forward(self, t):
        return self.out(self.rnn(self.emb(t))[0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(Speller())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    loader = DataLoader(Names(), BATCH, num_workers=3, persistent_workers="2" in FIX)
    metric = SpellingError()
    n, t0 = 0, time.perf_counter()
    while n < STEPS:
        for t in loader:
            opt.zero_grad()
            out = net(t)
            nn.functional.cross_entropy(out.flatten(0, 1), t.flatten()).backward()
            opt.step()
            if "1" not in FIX:
                metric.update(out.argmax(-1), t)
            n += 1
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / n * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
