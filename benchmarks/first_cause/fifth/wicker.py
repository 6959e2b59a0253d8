"""Short epochs of a gesture classifier; the loader opens a big index of recordings."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = int(os.environ.get("STEPS", 48))
FIX = os.environ.get("FIX", "")
PER_EPOCH = 8
BATCH = 32


class Gestures(Dataset):
    def __init__(self):
        self.index = None

    def __len__(self):
        return PER_EPOCH * BATCH * 2

    def open_index(self):
        index = {}
        for i in range(60000):
            index[f"recording/{i:07d}"] = (i, i % 9, i * 0.5)
        self.index = index

    def __getitem__(self, i):
        if self.index is None:
            self.open_index()
        n, label, _ = self.index[f"recording/{i:07d}"]
        g = torch.Generator().manual_seed(n)
        return torch.randn(30, 63, generator=g), label


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    data = Gestures()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=1, persistent_workers="1" in FIX)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(30 * 63, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 9)
    )
    net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), 0.01)
    step, epoch, began = 0, 0, None
    while step < STEPS:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step == 2:
                began = time.perf_counter()
            if step == STEPS:
                break
        epoch += 1
    if dist.get_rank() == 0:
        print("epochs", epoch, "mean step", round(1e3 * (time.perf_counter() - began) / (STEPS - 2), 1), "ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
