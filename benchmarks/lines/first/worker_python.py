"""CNN on small pictures; the loader's worker augments them in pure Python."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 8
SIDE = 48


def jitter_pixels(pixels, strength):
    out = []
    for i in range(len(pixels)):  # <- here
        left = pixels[i - 1]  # <- here
        noise = random.gauss(0.0, strength)  # <- here
        value = 0.8 * pixels[i] + 0.2 * left + noise  # <- here
        out.append(min(1.0, max(0.0, value)))  # <- here
    return out


def flip_pixels(pixels, width):
    out = []
    for i in range(0, len(pixels), width):
        out.extend(pixels[i : i + width][::-1])
    return out


class Pictures(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        pixels = torch.rand(3 * SIDE * SIDE, generator=gen).tolist()
        pixels = flip_pixels(pixels, SIDE)
        begin = time.perf_counter()
        pixels = jitter_pixels(pixels, 0.05)
        cost = time.perf_counter() - begin
        return torch.tensor(pixels).view(3, SIDE, SIDE), i % 10, cost


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 24, 3, stride=2)
        self.b = nn.Conv2d(24, 48, 3, stride=2)
        self.c = nn.Linear(48 * 11 * 11, 10)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.a(x)))).flatten(1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Pictures(BATCH * STEPS * world)
    loader = DataLoader(data, batch_size=BATCH, num_workers=1, sampler=DistributedSampler(data, world, rank))
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    spent, waited = 0.0, 0.0
    begin = mark = time.perf_counter()
    for x, y, cost in loader:
        waited += time.perf_counter() - mark
        spent += cost.sum().item()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mark = time.perf_counter()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} data_wait_ms={1e3 * waited / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
