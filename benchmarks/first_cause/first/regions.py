"""Trains a region classifier in short epochs over an indexed shard."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
EPOCH, CLASSES = 8, 12


class Shard:
    """Rows with an index by region; a stale index is rebuilt on use."""

    def __init__(self, stale_at):
        self.x = torch.randn(1024, 384)
        self.y = torch.randint(0, CLASSES, (1024,))
        self.stale_at = stale_at
        self.at = 0
        self.seconds = 0.0

    def rebuild(self):
        time.sleep(1.4)

    def batch(self, size):
        if self.at == self.stale_at:
            t = time.perf_counter()
            self.rebuild()
            self.seconds += time.perf_counter() - t
        self.at += 1
        pick = torch.randint(0, 1024, (size,))
        return self.x[pick], self.y[pick]


class Confusion:
    """Table of guesses by class, written out at the end of an epoch."""

    def __init__(self, on):
        self.on = on
        self.pairs = []
        self.seconds = 0.0

    def add(self, guess, y):
        self.pairs.append((guess, y))

    def table(self):
        rows = []
        for guess, y in self.pairs:
            rows += zip(guess.tolist(), y.tolist())
        counts = {}
        for _ in range(1500):  # one pass a resample
            for row in rows:
                counts[row] = counts.get(row, 0) + 1
        self.pairs = []
        return counts

    def close_epoch(self):
        if self.on:
            t = time.perf_counter()
            self.table()
            self.seconds += time.perf_counter() - t
        self.pairs = []


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    shard = Shard(stale_at=21 if rank == 1 and "1" not in FIX else -1)
    confusion = Confusion(on=rank == 0 and "2" not in FIX)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(384, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, CLASSES)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x, y = shard.batch(96)
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        confusion.add(out.argmax(-1), y)
        if step % EPOCH == EPOCH - 1:
            confusion.close_epoch()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={shard.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={confusion.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
