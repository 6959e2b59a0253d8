"""Small CNN, manual gradient averaging. Two pacing helpers; one of them is too careful."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "60"))
SPENT = {"quota": 0.0, "disk": 0.0}


class Digits(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 1, 28, 28, generator=gen)
        self.y = torch.randint(0, 10, (n,), generator=gen)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 32, 3, padding=1)
        self.c2 = nn.Conv2d(32, 48, 3, padding=1)
        self.out = nn.Linear(48 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.out(x.flatten(1))


def wait_for_quota(used, allowed):
    begin = time.perf_counter()
    backoff = 0.035 if used < allowed else 0.04
    time.sleep(backoff)  # <- here
    SPENT["quota"] += time.perf_counter() - begin
    return backoff


def wait_for_disk(used, allowed):
    begin = time.perf_counter()
    backoff = 0.002 if used < allowed else 0.003
    time.sleep(backoff)
    SPENT["disk"] += time.perf_counter() - begin
    return backoff


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Digits(64 * STEPS, seed=rank), batch_size=64)
    begin = time.perf_counter()
    for step, (x, y) in enumerate(loader):
        wait_for_disk(step, STEPS)
        wait_for_quota(step, STEPS)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        average_gradients(model, world)
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * SPENT['quota'] / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} decoy_ms_per_step={1e3 * SPENT['disk'] / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
