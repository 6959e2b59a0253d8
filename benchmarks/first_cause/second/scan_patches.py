"""Medical scan patches prepared by loader workers."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class Patches(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 50000

    def __getitem__(self, i):
        rng = np.random.default_rng(i * 7 + self.rank)
        vol = rng.standard_normal((20, 28, 28)).astype(np.float32)
        for axis in range(3):
            vol = 0.5 * vol + 0.25 * (np.roll(vol, 1, axis) + np.roll(vol, -1, axis))
        if rng.random() < 0.5:
            vol = vol[:, ::-1].copy()
        vol = (vol - vol.mean()) / (vol.std() + 1e-6)
        return torch.from_numpy(vol), i % 3


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = iter(DataLoader(Patches(rank), batch_size=48, num_workers=1, prefetch_factor=2))
    net = DDP(
        nn.Sequential(
            nn.Conv2d(20, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 3)
        )
    )
    opt = torch.optim.SGD(net.parameters(), 0.01)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = next(loader)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
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
