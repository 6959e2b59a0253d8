"""norland_tab: click prediction from text rows with hashed features."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time
import tracemalloc
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
BUCKETS = 20000
FIELDS = ("site", "device", "region", "campaign", "hour", "slot", "browser", "os")


class Diagnostics:
    def __init__(self, rank):
        self.active = rank == 0 and "1" not in FIX
        if self.active:
            tracemalloc.start()

    def summary(self):
        if not self.active:
            return "n/a"
        current, peak = tracemalloc.get_traced_memory()
        return f"python heap {current >> 10} kB, peak {peak >> 10} kB"


class RowSource:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def lines(self, count):
        draw = self.random.randrange
        return ["\t".join(f"{name}={draw(5000)}" for name in FIELDS) + f"\t{draw(2)}" for _ in range(count)]


class RowEncoder:
    def encode(self, line):
        cells = line.split("\t")
        pairs = dict(cell.split("=") for cell in cells[:-1])
        codes = [zlib.crc32(f"{k}:{v}".encode()) % BUCKETS for k, v in pairs.items()]
        for a, b in (("site", "device"), ("region", "hour"), ("campaign", "slot"), ("browser", "os")):
            codes.append(zlib.crc32(f"{a}x{b}:{pairs[a]}|{pairs[b]}".encode()) % BUCKETS)
        return codes, float(cells[-1])

    def batch(self, lines):
        rows = [self.encode(line) for line in lines]
        return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


class Clicks(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.table = nn.EmbeddingBag(BUCKETS, width, mode="sum")
        self.mlp = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, codes):
        return self.mlp(self.table(codes)).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    source, encoder = RowSource(rank), RowEncoder()
    model = DistributedDataParallel(Clicks())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    loss_fn = nn.BCEWithLogitsLoss()
    diagnostics = Diagnostics(rank)
    ticks = []
    for _step in range(STEPS):
        codes, clicked = encoder.batch(source.lines(400))
        loss = loss_fn(model(codes), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(diagnostics.summary())
        print(f"norland_tab: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
