"""inglenook: tensor-parallel feed-forward stack, columns then rows."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
WIDTH, HIDDEN = 384, 1024


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ParallelMLP(nn.Module):
    def __init__(self, world, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        part = HIDDEN // world
        self.up = nn.Parameter(torch.randn(part, WIDTH, generator=g) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(WIDTH, part, generator=g) / HIDDEN**0.5)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        h = CopyIn.apply(self.norm(x))
        h = nn.functional.gelu(h @ self.up.t())
        return x + SumOut.apply(h @ self.down.t())


class Stack(nn.Module):
    def __init__(self, rank, world, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(ParallelMLP(world, 100 * i + rank) for i in range(depth))
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Stack(rank, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(1)
    ticks = []
    for _step in range(STEPS):
        x = torch.randn(640, WIDTH, generator=g)
        label = torch.randint(0, 8, (640,), generator=g)
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"inglenook: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
