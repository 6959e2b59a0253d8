"""Satellite tiles, short epochs, one loader worker per rank."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
PER_EPOCH = 8
CATALOGUE = json.dumps([{"id": i, "lat": i * 0.01, "lon": i * 0.02, "tags": ["a", "b", str(i)]} for i in range(28000)])
catalogue = None


def open_catalogue(worker_id):
    global catalogue
    torch.set_num_threads(1)
    catalogue = {e["id"]: e for e in json.loads(CATALOGUE)}


class Tiles(Dataset):
    def __len__(self):
        return PER_EPOCH * 32 * 2

    def __getitem__(self, i):
        e = catalogue[i]
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 32, 32, generator=g) + e["lat"] * 0.01, i % 8


def main():
    dist.init_process_group("gloo")
    data = Tiles()
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data,
        32,
        sampler=sampler,
        num_workers=1,
        worker_init_fn=open_catalogue,
        persistent_workers="1" in FIX,
        prefetch_factor=2,
    )
    net = DDP(
        nn.Sequential(
            nn.Conv2d(3, 24, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(384, 8),
        )
    )
    opt = torch.optim.SGD(net.parameters(), 0.01)
    times, step, epoch = [], 0, 0
    t0 = time.perf_counter()
    while step < STEPS:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - t0)
            t0 = now
            step += 1
            if step == STEPS:
                break
        epoch += 1
    finish(times)


def finish(times):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(spent))
    if dist.get_rank() == 0:
        kept = times[5:]
        keys = sorted({k for e in everyone for k in e})
        body = {
            "step_ms": round(1e3 * sum(kept) / len(kept), 2),
            "per_step_ms": {k: [round(1e3 * e.get(k, 0.0) / len(times), 2) for e in everyone] for k in keys},
        }
        print("TRUTH " + json.dumps(body), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
