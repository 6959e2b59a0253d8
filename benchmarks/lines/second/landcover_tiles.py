"""Land cover from multi-date satellite tiles, read by a loader process."""

# SPDX-License-Identifier: Apache-2.0
import multiprocessing as mp
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "50"))
BATCH = 6


class RasterStore(Dataset):
    """Common ground for the tile sets: raw scenes and what is done to them."""

    def __init__(self, dates, bands, side, seed):
        rng = np.random.default_rng(seed)
        self.scenes = rng.integers(0, 4000, (16, dates, bands, side, side), dtype=np.int16)
        self.side = side
        self.work = mp.get_context("fork").Value("d", 0.0)

    def raw(self, i):
        return self.scenes[i % len(self.scenes)]

    def cloudless(self, stack):
        t0 = time.perf_counter()
        flat = np.median(stack, axis=0)  # <- here
        with self.work.get_lock():
            self.work.value += time.perf_counter() - t0
        return flat

    def darkest(self, stack):
        return np.min(stack, axis=0)

    def quick_median(self, stack):
        return np.median(stack[:, :, ::24, ::24], axis=0)


class LandCover(RasterStore):
    def __init__(self, length, seed):
        super().__init__(dates=13, bands=5, side=112, seed=seed)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        stack = self.raw(i)
        image = self.cloudless(stack) - self.darkest(stack)  # <- also
        level = self.quick_median(stack).mean()
        image = (image / (level + 1.0)).astype(np.float32)
        return torch.from_numpy(image), int(i) % 5


def build_net():
    return nn.Sequential(
        nn.Conv2d(5, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 5),
    )


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    data = LandCover(STEPS * BATCH, seed=rank)
    loader = DataLoader(data, batch_size=BATCH, num_workers=1, prefetch_factor=2)
    model = nn.parallel.DistributedDataParallel(build_net())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_fn = nn.CrossEntropyLoss()

    stream = iter(loader)
    dist.barrier()
    t0 = time.perf_counter()
    seen = 0
    for images, labels in stream:
        loss = loss_fn(model(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += 1
        if rank == 0 and seen % 20 == 0:
            print(f"batch {seen} loss {loss.item():.3f}")
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * data.work.value / seen:.1f} step_ms={1e3 * wall / seen:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
