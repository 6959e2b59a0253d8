"""CNN on photographs; the loader's worker filters them with Pillow."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageFilter
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 4
SIDE = 96


class Photos(Dataset):
    """Synthetic photographs, one per index."""

    def __init__(self, n, offset):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(self.offset + i)
        img = Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8))
        img = self.sharpen(img)
        begin = time.perf_counter()
        img = self.denoise(img)
        cost = time.perf_counter() - begin
        x = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255
        return x, i % 5, cost

    def sharpen(self, img):
        size = 3
        kernel = ImageFilter.UnsharpMask(size)
        return img.filter(kernel)

    def denoise(self, img):
        size = 5
        kernel = ImageFilter.MedianFilter(size)
        return img.filter(kernel)  # <- here


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride=2, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(conv(3, 16), conv(16, 32), conv(32, 64))
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def fit(model, loader):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    spent = waited = 0.0
    batches = iter(loader)
    for _ in range(STEPS):
        mark = time.perf_counter()
        x, y, cost = next(batches)
        waited += time.perf_counter() - mark
        spent += cost.sum().item()
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    return spent, waited


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(Photos(BATCH * STEPS, 10_000 * rank), batch_size=BATCH, num_workers=1)
    begin = time.perf_counter()
    spent, waited = fit(DDP(Net()), loader)
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} data_wait_ms={1e3 * waited / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
