"""Trains a small recurrent encoder on padded utterances."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
FRAMES, BATCH, BANDS, WORDS = 50, 16, 80, 32
SEED = 1234


class Encoder(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.front = nn.Linear(BANDS, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, WORDS)

    def forward(self, frames):
        h = torch.relu(self.front(frames))
        h, _ = self.rnn(h)
        return self.out(h).mean(1)


def utterances(rank, step):
    """A padded batch; the lists were sorted by length and then cut into one part a rank."""
    gen = torch.Generator().manual_seed(SEED + step)
    length = FRAMES + int(torch.randint(-4, 5, (1,), generator=gen))
    if rank == 1 and "1" not in FIX:
        length = int(length * 2.1)
    x = torch.randn(BATCH, length, BANDS)
    return x, torch.randint(0, WORDS, (BATCH,)), length


def average_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def train():
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dist.barrier()
    excess = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        x, y, length = utterances(rank, step)
        t = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        if rank == 1 and "1" not in FIX:
            excess += (time.perf_counter() - t) * (1 - 1 / 2.1)
        average_gradients(model)
        opt.step()
    dist.barrier()
    return rank, time.perf_counter() - begin, excess


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, took, excess = train()
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={excess / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
