"""Trains with local steps and averages the weights every fifth step."""

# SPDX-License-Identifier: Apache-2.0
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
SYNC_EVERY, BATCH = 5, 192


class History:
    """All sample losses so far; the median is shown with every step."""

    def __init__(self, on):
        self.on = on
        self.losses = []
        self.median = 0.0
        self.seconds = 0.0

    def add(self, losses):
        if not self.on:
            return
        t = time.perf_counter()
        self.losses.extend(losses.repeat(34).tolist())
        ordered = sorted(self.losses, key=abs)
        self.median = ordered[len(ordered) // 2]
        self.seconds += time.perf_counter() - t


class Tidy:
    """Frees what the steps left behind."""

    def __init__(self, on):
        self.on = on
        self.seconds = 0.0

    def __call__(self, step):
        if self.on and step % 10 == 0:
            t = time.perf_counter()
            gc.collect()
            self.seconds += time.perf_counter() - t


class Net(nn.Module):
    def __init__(self, width=448):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x.mean(-1)


@torch.no_grad()
def average_weights(params):
    flat = torch.nn.utils.parameters_to_vector(params)
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), params)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.005, momentum=0.9)
    history = History(on=rank == 1 and "1" not in FIX)
    tidy = Tidy(on=rank == 1 and "2" not in FIX)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        x = torch.randn(BATCH, 448)
        losses = (model(x) - x[:, 0]).square()
        opt.zero_grad()
        losses.mean().backward()
        opt.step()
        history.add(losses.detach())
        tidy(step)
        if step % SYNC_EVERY == 0:
            average_weights(params)
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={history.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={tidy.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
