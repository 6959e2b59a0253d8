"""Trains a click model on records read by a DataLoader worker."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH, PAGE = 64, 16


class Shard(Dataset):
    """One shard of records on a volume; `latency` is what a page of rows costs there."""

    def __init__(self, index, latency):
        self.index = index
        self.latency = latency
        self.rows = torch.randn(512, 256, generator=torch.Generator().manual_seed(index))

    def __len__(self):
        return BATCH * STEPS

    def read(self, i):
        if i % PAGE == 0:
            time.sleep(self.latency)
        return self.rows[i % 512]

    def __getitem__(self, i):
        x = self.read(i)
        return x, (x.sum() > 0).float()


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    volumes = {0: 0.002, 1: 0.014, 2: 0.002}
    if "1" in FIX:
        volumes[1] = 0.002
    loader = DataLoader(Shard(rank, volumes[rank]), batch_size=BATCH, num_workers=1, prefetch_factor=2)
    torch.manual_seed(0)
    model = DDP(ClickModel())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()

    batches = iter(loader)
    held = next(batches)
    dist.barrier()
    waited = 0.0
    begin = t = time.perf_counter()
    step = 0
    for x, y in batches:
        if rank == 1:
            waited += time.perf_counter() - t
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        step += 1
        t = time.perf_counter()
    x, y = held
    model.zero_grad()
    loss_fn(model(x), y).backward()
    opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={waited / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
