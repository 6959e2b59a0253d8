"""osier_vid: clip classifier whose loaders read from storage mirrors."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
WORKERS = 2
LATENCY = {"mirror-a": 0.001, "mirror-b": 0.001, "mirror-c": 0.001, "mirror-d": 0.018}


class MirrorClient:
    def __init__(self, name):
        self.name = name
        self.latency = LATENCY[name]

    def read(self, key):
        time.sleep(self.latency * (0.8 + 0.4 * ((key * 7919) % 97) / 97))
        return np.random.default_rng(key).integers(0, 256, (4, 3, 24, 24), np.uint8)


def pick_mirror(rank, worker):
    names = sorted(LATENCY)
    if "1" in FIX:
        names = [n for n in names if LATENCY[n] < 0.01]
    return MirrorClient(names[(rank * WORKERS + worker) % len(names)])


class Clips(Dataset):
    def __init__(self, rank):
        self.rank = rank
        self.client = None

    def __len__(self):
        return 8000

    def __getitem__(self, i):
        if self.client is None:
            self.client = pick_mirror(self.rank, get_worker_info().id)
        frames = self.client.read(i)
        return torch.from_numpy(frames.astype(np.float32) / 255), i % 8


class ClipNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.frame = nn.Sequential(
            nn.Conv2d(3, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.time = nn.GRU(16 * c, 64, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, clips):
        b, t = clips.shape[:2]
        h = self.frame(clips.flatten(0, 1)).view(b, t, -1)
        return self.head(self.time(h)[0][:, -1])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(Clips(rank), batch_size=8, num_workers=WORKERS, shuffle=True)
    model = DistributedDataParallel(ClipNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ticks = []
    for _step, (clips, label) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(clips), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"osier_vid: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
