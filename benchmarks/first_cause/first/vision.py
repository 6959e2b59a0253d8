"""Trains a small convolutional network with DDP."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
THREADS = 1 if "1" in FIX else 4


class ConvNet(nn.Module):
    def __init__(self, channels=32, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.block1 = self.block(channels, channels)
        self.block2 = self.block(channels, channels)
        self.head = nn.Linear(channels, classes)

    @staticmethod
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU())

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = nn.functional.max_pool2d(self.block1(x), 2)
        x = self.block2(x)
        return self.head(x.mean((2, 3)))


def one_step(model, opt):
    x = torch.rand(14, 3, 32, 32)
    y = torch.randint(0, 10, (14,))
    t = time.perf_counter()
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return time.perf_counter() - t


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = ConvNet()
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    for _ in range(3):
        one_step(model, opt)
    alone = sum(one_step(model, opt) for _ in range(8)) / 8

    torch.set_num_threads(THREADS)
    one_step(model, opt)
    dist.barrier()
    inside = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        inside += one_step(model, opt)
    dist.barrier()
    took = time.perf_counter() - begin
    extra = inside / STEPS - alone if THREADS != 1 else 0.0
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={extra * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
