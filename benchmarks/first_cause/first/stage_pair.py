"""Trains a residual network cut into two pipeline stages."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
MICRO, ROWS, WIDTH = 6, 32, 512
LAYERS = [2, 6] if "1" not in FIX else [4, 4]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.fc(self.norm(x)))


class Stage(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.body = nn.ModuleList(Layer() for _ in range(layers))
        self.busy = 0.0

    def forward(self, x):
        for layer in self.body:
            x = layer(x)
        return x


def first(stage, data):
    """Runs all forwards, then all backwards; activations go to rank 1."""
    outs, sent = [], []
    for x in data:
        y = stage(x)
        sent.append(dist.isend(y.detach(), dst=1))
        outs.append(y)
    grad = torch.empty(ROWS, WIDTH)
    for y in outs:
        dist.recv(grad, src=1)
        y.backward(grad)
    for work in sent:
        work.wait()


def last(stage):
    total, sent = 0.0, []
    for _ in range(MICRO):
        x = torch.empty(ROWS, WIDTH)
        dist.recv(x, src=0)
        x.requires_grad_()
        t = time.perf_counter()
        loss = stage(x).square().mean() / MICRO
        loss.backward()
        stage.busy += time.perf_counter() - t
        sent.append(dist.isend(x.grad, dst=0))
        total += loss.item()
    for work in sent:
        work.wait()
    return total


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Stage(LAYERS[rank])
    opt = torch.optim.SGD(stage.parameters(), lr=0.01)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        opt.zero_grad()
        if rank == 0:
            first(stage, torch.randn(MICRO, ROWS, WIDTH))
        else:
            last(stage)
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    excess = stage.busy * 2 / 6 if "1" not in FIX else 0.0
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={excess / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
