"""puffin_seg: segmentation of tiles cut from survey volumes."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
SIDE = 44


class Survey:
    def __init__(self, seed, shape=(24, 288, 288)):
        self.volume = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class Tiles(Dataset):
    def __init__(self, survey, count=2000):
        self.survey, self.count = survey, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        _, h, w = self.survey.volume.shape
        y, x = rng.integers(0, h - SIDE), rng.integers(0, w - SIDE)
        block = self.survey.volume[:, y : y + SIDE, x : x + SIDE]
        tile = block[8:16].copy()
        item = {"tile": tile, "mask": (tile.mean(0) > 0).astype(np.int64), "origin": (int(y), int(x))}
        if "1" not in FIX:
            item["context"] = self.survey.volume[8:16, max(0, y - 72) : y + 100, max(0, x - 72) : x + 100]
        return item


def collate(items):
    batch = {
        "tile": torch.from_numpy(np.stack([i["tile"] for i in items])),
        "mask": torch.from_numpy(np.stack([i["mask"] for i in items])),
        "origin": [i["origin"] for i in items],
    }
    if "context" in items[0]:
        batch["context"] = [i["context"] for i in items]
    return batch


class SmallUNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(8, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.out = nn.Conv2d(2 * c, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        return self.out(torch.cat([a, self.up(self.down2(a))], 1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Tiles(Survey(rank))
    loader = DataLoader(data, batch_size=10, num_workers=1, collate_fn=collate, persistent_workers=True)
    model = DistributedDataParallel(SmallUNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ticks = []
    for _step, batch in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(batch["tile"]), batch["mask"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"puffin_seg: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
