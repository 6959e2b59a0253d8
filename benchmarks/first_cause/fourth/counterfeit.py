"""Banknote-pattern adversarial pair with two optimisers and one tiny late save."""

# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))
B = 160


def mlp(*sizes):
    parts = []
    for a, b in itertools.pairwise(sizes):
        parts += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*parts[:-1])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    forger, clerk = DDP(mlp(32, 400, 400, 144)), DDP(mlp(144, 400, 400, 1))
    of = torch.optim.Adam(forger.parameters(), 2e-4)
    oc = torch.optim.Adam(clerk.parameters(), 2e-4)
    ones, zeros = torch.ones(B, 1), torch.zeros(B, 1)
    t0 = time.perf_counter()
    for _ in range(STEPS):
        real, fake = torch.randn(B, 144), forger(torch.randn(B, 32))
        oc.zero_grad()
        said = clerk(torch.cat([real, fake.detach()]))
        F.binary_cross_entropy_with_logits(said, torch.cat([ones, zeros])).backward()
        oc.step()
        of.zero_grad()
        F.binary_cross_entropy_with_logits(clerk(fake), ones).backward()
        of.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
        with tempfile.NamedTemporaryFile() as f:
            torch.save(forger.module[-1].state_dict(), f)
    dist.barrier()
    dist.destroy_process_group()


main()
