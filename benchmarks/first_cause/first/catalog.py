"""Trains on item features looked up in a feature service."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))


class Unavailable(Exception):
    pass


class FeatureService:
    """Stands for a remote store with several replicas; one of them drops calls."""

    def __init__(self, replica, drops):
        self.random = random.Random(replica)
        self.drops = drops
        self.table = torch.randn(1024, 128)

    def get(self, ids):
        if self.random.random() < self.drops:
            raise Unavailable()
        return self.table[ids]


class Client:
    def __init__(self, service):
        self.service = service
        self.slept = 0.0

    def lookup(self, ids):
        pause = 0.004
        while True:
            try:
                return self.service.get(ids)
            except Unavailable:
                t = time.perf_counter()
                time.sleep(pause)
                self.slept += time.perf_counter() - t
                pause = min(pause * 2, 0.032)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))

    def forward(self, x):
        return self.net(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    drops = 0.66 if rank == 2 and "1" not in FIX else 0.0
    client = Client(FeatureService(replica=rank, drops=drops))
    model = DDP(Scorer())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        ids = torch.randint(0, 1024, (48,))
        x = client.lookup(ids)
        loss = (model(x).squeeze(1) - x.mean(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        dist.all_reduce(loss.detach())
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={client.slept / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
