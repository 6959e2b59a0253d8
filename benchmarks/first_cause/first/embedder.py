"""Trains large embedding projections on small batches over three ranks."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))
BATCH, ITEMS, WIDTH = 8, 6000, 256


class Autoencoder(nn.Module):
    """Bag of items to a code and back; nearly all weights lie at the two ends."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(ITEMS, WIDTH)
        self.out = nn.Linear(WIDTH, ITEMS)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))


class Bags:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)

    def batch(self):
        picks = torch.randint(0, ITEMS, (BATCH, 20), generator=self.gen)
        return torch.zeros(BATCH, ITEMS).scatter_(1, picks, 1.0)


def train(rank):
    torch.manual_seed(0)
    model = DDP(Autoencoder(), gradient_as_bucket_view=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    bags = Bags(rank)
    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = bags.batch()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    return time.perf_counter() - begin


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    took = train(rank)
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
