"""hawthorn_gnn: message passing on random molecules, gradients averaged by hand."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))


class Molecules:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, graphs=48):
        atoms = torch.randint(16, 29, (graphs,), generator=self.g)
        owner = torch.repeat_interleave(torch.arange(graphs), atoms)
        start = torch.cumsum(atoms, 0) - atoms
        n = len(owner)
        source = torch.arange(n).repeat(3)
        offset = (torch.rand(3 * n, generator=self.g) * atoms[owner].repeat(3)).long()
        target = start[owner].repeat(3) + offset
        features = torch.randn(n, 16, generator=self.g)
        return features, source, target, owner, graphs


class MessageLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU())
        self.update = nn.GRUCell(width, width)

    def forward(self, h, source, target):
        m = self.message(torch.cat([h[source], h[target]], -1))
        return self.update(torch.zeros_like(h).index_add(0, target, m), h)


class MoleculeNet(nn.Module):
    def __init__(self, width=96, depth=2):
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.layers = nn.ModuleList(MessageLayer(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, features, source, target, owner, graphs):
        h = self.lift(features)
        for layer in self.layers:
            h = layer(h, source, target)
        return torch.zeros(graphs, 1).index_add(0, owner, self.out(h)).squeeze(-1)


class Averager:
    def __init__(self, params):
        self.params = list(params)
        self.flat = torch.zeros(sum(p.numel() for p in self.params))
        at = 0
        for p in self.params:
            p.grad = self.flat[at : at + p.numel()].view_as(p)
            at += p.numel()

    def zero(self):
        self.flat.zero_()

    def reduce(self):
        dist.all_reduce(self.flat)
        self.flat /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = MoleculeNet()
    averager = Averager(model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    molecules = Molecules(rank)
    ticks = []
    for _step in range(STEPS):
        batch = molecules.batch()
        energy = model(*batch)
        averager.zero()
        energy.sub(1.0).square().mean().backward()
        averager.reduce()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"hawthorn_gnn: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
