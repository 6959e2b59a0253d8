"""Trains a network with hooks on the gradients of its layers."""

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
LEVELS = {0: 0, 1: 0 if "1" in FIX else 64}


class Quantiser:
    """Rounds a gradient to a few levels placed at its quantiles."""

    def __init__(self, levels):
        self.levels = levels
        self.at = torch.linspace(0, 1, levels) if levels else None
        self.seconds = 0.0

    def __call__(self, grad):
        t = time.perf_counter()
        flat = grad.flatten()
        ordered = flat[::4].sort().values
        edges = ordered[(self.at * (len(ordered) - 1)).long()]
        nearest = torch.bucketize(flat, edges).clamp_(max=self.levels - 1)
        out = edges[nearest].view_as(grad)
        self.seconds += time.perf_counter() - t
        return out


class Net(nn.Module):
    def __init__(self, width=448, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 16)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.out(x)


def attach(net, levels):
    quantiser = Quantiser(levels)
    if levels:
        for layer in list(net.layers)[:2]:
            layer.weight.register_hook(quantiser)
    return quantiser


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    quantiser = attach(net, LEVELS[rank])
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(256, 448)
        y = x[:, :16].argmax(-1)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={quantiser.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
