"""Letter recogniser fed with drawn glyphs through a collate class."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
SIDE = 40
BATCH = 16


class Glyphs(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        letter = (i * 7 + self.rank) % 26
        im = Image.new("L", (SIDE, SIDE))
        ImageDraw.Draw(im).text((12, 12), chr(65 + letter), fill=255)
        return np.asarray(im, dtype=np.uint8), letter


def thicken(plate):
    """Grow the strokes by one pixel."""
    rows = plate.tolist()
    out = [row[:] for row in rows]
    for y in range(1, len(rows) - 1):
        for x in range(1, len(rows[0]) - 1):
            out[y][x] = max(rows[y][x], rows[y - 1][x], rows[y + 1][x], rows[y][x - 1], rows[y][x + 1])
    return np.array(out, dtype=np.uint8)


def thicken_fast(plate):
    out = plate.copy()
    np.maximum(out[1:-1, 1:-1], plate[:-2, 1:-1], out=out[1:-1, 1:-1])
    np.maximum(out[1:-1, 1:-1], plate[2:, 1:-1], out=out[1:-1, 1:-1])
    np.maximum(out[1:-1, 1:-1], plate[1:-1, :-2], out=out[1:-1, 1:-1])
    np.maximum(out[1:-1, 1:-1], plate[1:-1, 2:], out=out[1:-1, 1:-1])
    return out


class GlyphCollate:
    def __call__(self, items):
        grow = thicken_fast if "1" in FIX else thicken
        pics = [grow(p) for p, _ in items]
        x = torch.from_numpy(np.stack(pics)).float().div_(255).unsqueeze(1)
        return x, torch.tensor([t for _, t in items])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32 * 10 * 10, 26)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.head(x.flatten(1))


def average(net, world):
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    feed = DataLoader(Glyphs(rank), batch_size=BATCH, collate_fn=GlyphCollate(), num_workers=1)
    t0 = time.perf_counter()
    for x, y in feed:
        for _ in range(2):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
        average(net, world)
        opt.step()
    if rank == 0:
        print("mean step %.1f ms" % ((time.perf_counter() - t0) * 1e3 / STEPS))
    dist.barrier()
    dist.destroy_process_group()
