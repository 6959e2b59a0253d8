"""Trains a deep narrow residual network with hand-written gradient averaging."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
DEPTH, WIDTH = 18, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + self.gain * torch.tanh(self.fc(self.norm(x)))


def average_each(model):
    world = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def average_flat(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, WIDTH), *[Block() for _ in range(DEPTH)], nn.Linear(WIDTH, 8))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    loss_fn = nn.MSELoss()
    torch.manual_seed(rank)

    loss_fn(model(torch.randn(512, 64)), torch.zeros(512, 8)).backward()
    fair = 1e9
    for _ in range(5):
        dist.barrier()
        t = time.perf_counter()
        average_flat(model)
        fair = min(fair, time.perf_counter() - t)

    dist.barrier()
    syncing = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(512, 64)
        loss = loss_fn(model(x), x[:, :8])
        opt.zero_grad()
        loss.backward()
        if "1" in FIX:
            average_flat(model)
        else:
            t = time.perf_counter()
            average_each(model)
            syncing += time.perf_counter() - t - fair
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={syncing / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
