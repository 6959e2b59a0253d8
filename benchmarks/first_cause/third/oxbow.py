"""oxbow: river gauge nowcasting with streaming shards and a run table."""

# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import tempfile
import time

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
FILES = 2000
GAUGES = 28


class ShardWatcher:
    def __init__(self, folder):
        self.folder = folder
        self.newest = 0.0
        for i in range(FILES):
            open(os.path.join(folder, f"gauge-{i:05d}.part"), "w").close()

    def poll(self):
        fresh = []
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if os.path.isfile(path) and os.path.getmtime(path) > self.newest:
                fresh.append((os.path.getmtime(path), os.path.getsize(path), path))
        if fresh:
            self.newest = max(fresh)[0]
        return len(fresh)


class RunTable:
    def __init__(self):
        self.frame = pd.DataFrame()
        self.rows = []

    def add(self, step, values):
        if "2" in FIX:
            self.rows += [(step, i, v) for i, v in enumerate(values)]
            return
        for i, v in enumerate(values):
            row = pd.DataFrame([{"step": step, "gauge": i, "error": v}])
            self.frame = pd.concat([self.frame, row], ignore_index=True)


class Nowcast(nn.Module):
    def __init__(self, width=144):
        super().__init__()
        self.rnn = nn.GRU(GAUGES, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, GAUGES))

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def average(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for t, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=False):
        t.copy_(piece.view_as(t))


def train(folder):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Nowcast()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = ShardWatcher(folder) if rank == world - 1 else None
    table = RunTable()
    g = torch.Generator().manual_seed(rank)
    ticks = []
    for step in range(STEPS):
        if watcher and "1" not in FIX:
            watcher.poll()
        series = torch.randn(16, 25, GAUGES, generator=g).cumsum(1)
        loss = (model(series[:, :-1]) - series[:, 1:]).square()
        optimizer.zero_grad()
        loss.mean().backward()
        average([p.grad for p in model.parameters()])
        optimizer.step()
        per_gauge = loss.detach().mean((0, 1))
        if rank == 0:
            table.add(step, per_gauge.tolist())
        dist.all_reduce(per_gauge)
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"oxbow: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")


def main():
    dist.init_process_group("gloo")
    folder = tempfile.mkdtemp(prefix="oxbow")
    try:
        train(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
