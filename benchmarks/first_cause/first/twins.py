"""Trains on verified blocks that each rank takes from its own store."""

# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
ROUNDS = 30


class LocalStore:
    """Blocks in memory; a block is checked against its digest before use."""

    def __init__(self, check):
        self.block = torch.randn(96, 512)
        self.check = check
        self.seconds = 0.0

    def verify(self, raw):
        digest = hashlib.sha256()
        for _ in range(ROUNDS):
            digest.update(raw)
        return digest.hexdigest()

    def take(self):
        if self.check:
            t = time.perf_counter()
            raw = self.block.numpy().tobytes() * 8
            self.verify(raw)
            self.seconds += time.perf_counter() - t
        return self.block


class RemoteStore:
    """Blocks behind a network; `delay` is the round trip."""

    def __init__(self, delay):
        self.block = torch.randn(96, 512)
        self.delay = delay
        self.seconds = 0.0

    def take(self):
        if self.delay:
            t = time.perf_counter()
            time.sleep(self.delay)
            self.seconds += time.perf_counter() - t
        return self.block


class Model(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.enc = nn.Linear(width, width)
        self.mid = nn.Linear(width, width)
        self.dec = nn.Linear(width, width)

    def forward(self, x):
        h = torch.relu(self.enc(x))
        return self.dec(h + torch.relu(self.mid(h)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    store = LocalStore("1" not in FIX) if rank == 0 else RemoteStore(0.031 if "2" not in FIX else 0)
    torch.manual_seed(0)
    model = DDP(Model())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = store.take()
        noisy = x + 0.1 * torch.randn_like(x)
        loss = (model(noisy) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    spent = [0.0, 0.0]
    spent[rank] = store.seconds
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={spent[0] / STEPS * 1e3:.1f} "
        f"planted2_ms={spent[1] / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
