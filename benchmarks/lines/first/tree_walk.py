"""Tree regressor; rank 1 scores its parse trees by recursion before every step."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "70"))
BATCH = 128


def grow(rng, depth):
    kids = [] if depth == 0 else [grow(rng, depth - 1) for _ in range(4)]
    return {"text": "".join(rng.choice("abcdefgh") for _ in range(60)), "kids": kids}


def height(node):
    best = 0
    for kid in node["kids"]:
        best = max(best, height(kid))
    return best + 1


def score(node):
    total = 0
    for letter in node["text"]:  # <- here
        total += (ord(letter) * 31) & 7  # <- here
    for kid in node["kids"]:  # <- here
        total += score(kid)  # <- here
    return total


class Features(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 320)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(320, 1024)
        self.b = nn.Linear(1024, 768)
        self.c = nn.Linear(768, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    tree = grow(random.Random(rank), 6)
    model = DDP(Net())
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    loader = DataLoader(Features(BATCH * STEPS), batch_size=BATCH)
    spent = decoy = 0.0
    begin = time.perf_counter()
    for x, y in loader:
        t0 = time.perf_counter()
        levels = height(tree)
        t1 = time.perf_counter()
        marks = score(tree) if rank == 1 else 1
        t2 = time.perf_counter()
        decoy += t1 - t0
        spent += t2 - t1
        loss = nn.functional.mse_loss(model(x), y) + 0.0 * marks / levels
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} decoy_ms_per_step={1e3 * decoy / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
