"""Land cover from satellite pixels as a stream with a shuffle buffer."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))
CLASSES = 16


def shuffled(stream, size, rng):
    """A window of the stream in random order."""
    window = []
    if "1" in FIX:
        for item in stream:
            if len(window) < size:
                window.append(item)
                continue
            k = rng.randrange(size)
            window[k], item = item, window[k]
            yield item
        return
    for item in stream:
        window = window + [item]
        if len(window) > size:
            k = rng.randrange(len(window))
            yield window[k]
            window = window[:k] + window[k + 1 :]


class Pixels(IterableDataset):
    def __init__(self, rank, size=20000):
        self.rank, self.size = rank, size

    def raw(self):
        g = torch.Generator().manual_seed(self.rank)
        while True:
            block = torch.randn(512, 36, generator=g)
            label = torch.randint(0, CLASSES, (512,), generator=g)
            yield from zip(block, label)

    def __iter__(self):
        return shuffled(self.raw(), self.size, random.Random(self.rank))


class ConfusionBoard:
    def __init__(self):
        self.counts = [[0] * CLASSES for _ in range(CLASSES)]
        self.bins = [[0] * 10 for _ in range(CLASSES)]

    def update(self, logits, target):
        guess, target = logits.argmax(1), target
        if "2" in FIX:
            flat = torch.bincount(target * CLASSES + guess, minlength=CLASSES**2).view(CLASSES, CLASSES)
            self.counts = (torch.tensor(self.counts) + flat).tolist()
            return
        for t, p in zip(target, guess):
            self.counts[int(t)][int(p)] += 1
        for row in logits.softmax(1):
            for c in range(CLASSES):
                self.bins[c][min(9, int(float(row[c]) * 10))] += 1
        hits = sum(self.counts[k][k] for k in range(CLASSES))
        self.accuracy = hits / sum(map(sum, self.counts))
        self.top3 = sum(float(t in row.topk(3).indices) for t, row in zip(target, logits)) / len(target)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(36, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    )
    opt = torch.optim.SGD(net.parameters(), 0.05)
    board, marks = ConfusionBoard(), []
    for x, y in DataLoader(Pixels(rank), batch_size=128):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        board.update(out.detach(), y)
        marks.append(time.perf_counter())
        if len(marks) == STEPS:
            break
    if rank == 0:
        print(f"mean step {(marks[-1] - marks[1]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
