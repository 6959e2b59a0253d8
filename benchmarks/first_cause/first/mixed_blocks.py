"""Trains blocks of very different size with DDP."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 128


class Narrow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.scale * torch.tanh(self.fc(x))


class Net(nn.Module):
    """Ten narrow blocks, then two wide layers."""

    def __init__(self, narrow=128, wide=1024):
        super().__init__()
        self.first = nn.Sequential(*[Narrow(narrow) for _ in range(10)])
        self.widen = nn.Linear(narrow, wide)
        self.wide = nn.Linear(wide, wide)
        self.out = nn.Linear(wide, 16)

    def forward(self, x):
        h = torch.relu(self.widen(self.first(x)))
        return self.out(torch.relu(self.wide(h)))


def evaluate(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(-1) == y).float().mean().item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    model = DDP(net, bucket_cap_mb=1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    held_x = torch.randn(32, 128)
    held_y = held_x[:, :16].argmax(-1)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(BATCH, 128)
        loss = nn.functional.cross_entropy(model(x), x[:, :16].argmax(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    evaluate(net, held_x, held_y)
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
