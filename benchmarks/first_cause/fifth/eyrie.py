"""Sharded training of a deep narrow network on photo patches."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageFilter
from torch import nn
from torch.distributed.fsdp import fully_shard

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 36))


class Cell(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Deep(nn.Module):
    def __init__(self, d=64, depth=4):
        super().__init__()
        self.stem = nn.Linear(3 * 16 * 16, d)
        self.cells = nn.ModuleList(Cell(d) for _ in range(depth))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        h = self.stem(x)
        for c in self.cells:
            h = c(h)
        return self.head(h)


class Patches:
    def __init__(self, rank):
        self.rng = np.random.default_rng(rank)
        self.rank = rank
        side = 160 if rank == 1 and "1" not in FIX else 16  # the second site stores originals
        self.pool = [Image.fromarray(self.rng.integers(0, 255, (side, side, 3), dtype=np.uint8)) for _ in range(24)]

    def soften(self, img):
        img = img.filter(ImageFilter.GaussianBlur(1))
        return img.resize((16, 16), Image.BICUBIC)

    def batch(self, n):
        pick = self.rng.integers(0, len(self.pool), n)
        rows = [np.asarray(self.soften(self.pool[i]), dtype=np.float32).reshape(-1) / 255 for i in pick]
        return torch.from_numpy(np.stack(rows)), torch.from_numpy(pick % 5)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Deep()
    if "2" not in FIX:
        for c in model.cells:
            fully_shard(c.up)
            fully_shard(c.down)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    data, t = Patches(rank), []
    for _ in range(STEPS):
        x, y = data.batch(48)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        t.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(t[-1] - t[1]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
