"""lodestar: star-field denoiser with activation statistics."""

# SPDX-License-Identifier: Apache-2.0
import gc
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")


class Star:
    __slots__ = ("dec", "links", "mag", "ra")

    def __init__(self, ra, dec, mag):
        self.ra, self.dec, self.mag, self.links = ra, dec, mag, []


class Catalogue:
    def __init__(self, seed, count=9000):
        values = np.random.default_rng(seed).random((count, 3)).tolist()
        self.stars = [Star(*v) for v in values]
        for a, b in zip(self.stars, self.stars[1:], strict=False):
            a.links.append(b)
        self.rng = np.random.default_rng(seed)

    def image(self, side=48):
        sky = np.zeros((side, side), np.float32)
        for i in self.rng.integers(0, len(self.stars), 60):
            s = self.stars[i]
            sky[int(s.ra * side), int(s.dec * side)] += s.mag
        return torch.from_numpy(sky)[None]

    def batch(self, rows=8):
        clean = torch.stack([self.image() for _ in range(rows)])
        return clean + 0.1 * torch.randn_like(clean), clean


class Denoiser(nn.Module):
    def __init__(self, c=20):
        super().__init__()
        self.first = nn.Conv2d(1, c, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(3))
        self.last = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x):
        h = torch.relu(self.first(x))
        for conv in self.body:
            h = torch.relu(conv(h))
        return x - self.last(h)


class Percentiles:
    def __init__(self):
        self.rows = []

    def __call__(self, module, inputs, output):
        values = output.detach().numpy().ravel()
        self.rows.append(np.percentile(values, [1, 5, 25, 50, 75, 95, 99]))


def tidy(step):
    if step % 4 == 0 and "1" not in FIX:
        gc.collect()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    catalogue = Catalogue(rank)
    core = Denoiser()
    if rank == 1 and "2" not in FIX:
        tap = Percentiles()
        for conv in core.body:
            conv.register_forward_hook(tap)
    model = DistributedDataParallel(core)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ticks = []
    for step in range(STEPS):
        noisy, clean = catalogue.batch()
        loss = nn.functional.l1_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tidy(step)
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"lodestar: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
