"""dunlin: three-stage pipeline with one-forward-one-backward order."""

# SPDX-License-Identifier: Apache-2.0
import os
import time
from collections import deque

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
WIDTH, ROWS, MICRO = 224, 64, 6


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x):
        return x + self.net(x)


class Stage(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.blocks = nn.Sequential(*(Residual() for _ in range(depth)))

    def forward(self, x):
        return self.blocks(x)


class Schedule:
    def __init__(self, stage, rank, world):
        self.stage, self.rank, self.world = stage, rank, world
        self.g = torch.Generator().manual_seed(rank)
        self.live = deque()
        self.pending = []

    def push(self, tensor, to):
        self.pending.append((dist.isend(tensor, to), tensor))

    def forward_one(self):
        if self.rank == 0:
            x = torch.randn(ROWS, WIDTH, generator=self.g)
        else:
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        y = self.stage(x)
        if self.rank < self.world - 1:
            self.push(y.detach().contiguous(), self.rank + 1)
        self.live.append((x, y))

    def backward_one(self):
        x, y = self.live.popleft()
        if self.rank == self.world - 1:
            (y.square().mean() / MICRO).backward()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, self.rank + 1)
            y.backward(grad)
        if self.rank > 0:
            self.push(x.grad, self.rank - 1)

    def run(self):
        warm = min(MICRO, self.world - 1 - self.rank)
        for _ in range(warm):
            self.forward_one()
        for _ in range(MICRO - warm):
            self.forward_one()
            self.backward_one()
        for _ in range(warm):
            self.backward_one()
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Stage()
    optimizer = torch.optim.Adam(stage.parameters(), lr=1e-4)
    schedule = Schedule(stage, rank, world)
    ticks = []
    for _step in range(STEPS):
        optimizer.zero_grad()
        schedule.run()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"dunlin: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
