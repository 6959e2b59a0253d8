"""Trains with gradients summed on a ring of sends and receives."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = int(os.environ.get("STEPS", "40"))
BATCH, WIDTH = 128, 512


class Ring:
    """Sum over all ranks: a scatter-reduce round, then a gather round."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.right = (rank + 1) % world
        self.left = (rank - 1) % world

    def pass_on(self, chunk, into):
        work = dist.isend(chunk, self.right)
        dist.recv(into, self.left)
        work.wait()

    def sum(self, flat):
        chunks = list(flat.chunk(self.world))
        got = torch.empty_like(chunks[0])
        for hop in range(self.world - 1):
            give = (self.rank - hop) % self.world
            take = (give - 1) % self.world
            into = got[: chunks[take].numel()]
            self.pass_on(chunks[give], into)
            chunks[take] += into
        for hop in range(self.world - 1):
            give = (self.rank + 1 - hop) % self.world
            self.pass_on(chunks[give], chunks[(give - 1) % self.world])
        return flat


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.005)
    ring = Ring(rank, world)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        flat = ring.sum(torch.cat([p.grad.flatten() for p in params]))
        torch.nn.utils.vector_to_parameters(flat / world, [p.grad for p in params])
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
