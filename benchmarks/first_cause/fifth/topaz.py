"""Local SGD: ranks train alone and average their weights every eighth step."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 48))
PERIOD = 8


@torch.no_grad()
def average(model):
    flat = nn.utils.parameters_to_vector(model.parameters())
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())


def take_step(model, opt, rows):
    x = torch.randn(rows, 128)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 448), nn.Mish(), nn.Linear(448, 448), nn.Mish(), nn.Linear(448, 128))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    # sentences differ in length; over a period both ranks see the same amount
    sizes = [96, 640]
    stamp = []
    for step in range(STEPS):
        loss = take_step(model, opt, sizes[(step + rank) % 2])
        if (step + 1) % PERIOD == 0:
            average(model)
        if "1" not in FIX:
            dist.barrier()
        stamp.append(time.perf_counter())
    if rank == 0:
        print(f"loss {loss.item():.3f}; mean step {(stamp[-1] - stamp[PERIOD - 1]) / (STEPS - PERIOD) * 1e3:.1f} ms")
    dist.destroy_process_group()


main()
