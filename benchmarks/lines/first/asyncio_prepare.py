"""Two-tower model; side features of every step come through a small asyncio pipeline."""

# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 160


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512))
        self.item = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 512))

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).mean(-1)


class FeatureStore:
    def __init__(self):
        self.seconds = 0.0

    async def lookup(self, key):
        gen = torch.Generator().manual_seed(key)
        return torch.randn(BATCH, 64, generator=gen)

    async def fetch(self, key):
        begin = time.perf_counter()
        await asyncio.sleep(0.04)  # the store answers late  # <- here
        self.seconds += time.perf_counter() - begin
        return await self.lookup(key)


async def prepare(store, step):
    side = await store.fetch(step % 16)  # <- also
    await asyncio.sleep(0)
    return side / side.norm(dim=1, keepdim=True)


def train(rank):
    torch.manual_seed(11)
    store = FeatureStore()
    model = DDP(TwoTower())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH * STEPS, 128)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).float()), batch_size=BATCH)
    begin = time.perf_counter()
    for step, (user, click) in enumerate(loader):
        item = asyncio.run(prepare(store, step))  # <- also
        loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), click)
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * store.seconds / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
