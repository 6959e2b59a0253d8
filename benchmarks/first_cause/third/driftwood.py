"""driftwood: two-stage pipeline that names a sequence from its last element."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
WIDTH = 256
ROWS = 96
MICRO = 4
LAYERS = (4, 4)
VOCAB = 3000
SPAN = 16


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stage(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.first, self.last = rank == 0, rank == world - 1
        self.blocks = nn.ModuleList(Residual() for _ in range(LAYERS[rank]))
        self.head = nn.Linear(WIDTH, VOCAB) if self.last else None

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if not self.last:
            return x
        if "1" in FIX:
            return self.head(x[SPAN - 1 :: SPAN])
        return self.head(x)[SPAN - 1 :: SPAN]


class Pipe:
    def __init__(self, stage, rank, seed):
        self.stage, self.rank = stage, rank
        self.g = torch.Generator().manual_seed(seed)

    def forward(self):
        kept = []
        for _ in range(MICRO):
            if self.stage.first:
                x = torch.randn(ROWS, WIDTH, generator=self.g)
            else:
                x = torch.empty(ROWS, WIDTH)
                dist.recv(x, self.rank - 1)
                x.requires_grad_()
            y = self.stage(x)
            if not self.stage.last:
                dist.send(y.detach(), self.rank + 1)
            kept.append((x, y))
        return kept

    def backward(self, kept):
        for x, y in kept:
            if self.stage.last:
                label = torch.randint(0, VOCAB, (ROWS // SPAN,), generator=self.g)
                nn.functional.cross_entropy(y, label).div(MICRO).backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, self.rank + 1)
                y.backward(grad)
            if not self.stage.first:
                dist.send(x.grad, self.rank - 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Stage(rank, world)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    pipe = Pipe(stage, rank, 40 + rank)
    ticks = []
    for _step in range(STEPS):
        optimizer.zero_grad()
        pipe.backward(pipe.forward())
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"driftwood: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
