"""A two-stage pipeline over a deep MLP, micro-batches passed by hand."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 36))
DIM, MICRO, ROWS = 256, 4, 64
SPLIT = (5, 5) if "1" in FIX else (1, 9)


class Stage(nn.Module):
    def __init__(self, depth, last):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)) for _ in range(depth)
        )
        self.head = nn.Linear(DIM, 10) if last else nn.Identity()

    def forward(self, x):
        for b in self.blocks:
            x = x + b(x)
        return self.head(x)


def front_step(stage, opt):
    kept = []
    for _ in range(MICRO):
        h = stage(torch.randn(ROWS, DIM))
        dist.send(h.detach(), 1)
        kept.append(h)
    for h in kept:
        g = torch.empty_like(h)
        dist.recv(g, 1)
        h.backward(g)
    opt.step()
    opt.zero_grad()


def back_step(stage, opt):
    on_the_way = []
    for _ in range(MICRO):
        h = torch.empty(ROWS, DIM)
        dist.recv(h, 0)
        h.requires_grad_()
        loss = nn.functional.cross_entropy(stage(h), torch.randint(0, 10, (ROWS,)))
        (loss / MICRO).backward()
        on_the_way.append((dist.isend(h.grad, 0), h.grad))
    for job, _ in on_the_way:
        job.wait()
    opt.step()
    opt.zero_grad()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = Stage(SPLIT[rank], last=rank == 1)
    opt = torch.optim.SGD(stage.parameters(), lr=0.01)
    run = (front_step, back_step)[rank]
    took = []
    for _ in range(STEPS):
        t = time.perf_counter()
        run(stage, opt)
        took.append(time.perf_counter() - t)
    if rank == 0:
        print(f"mean step {sum(took[2:]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


main()
