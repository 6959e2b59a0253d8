"""Headline classifier fed by a chain of generators."""

# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import random
import sys
import time
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

STEPS = int(os.environ.get("STEPS", "50"))
WORDS = [f"w{i:03d}" for i in range(600)]
SPENT = [0.0]


def headlines(rng):
    for n in itertools.count():
        yield n % 8, frozenset(rng.choices(WORDS, k=12))


def drop_short(rows):
    for label, words in rows:
        if len(words) >= 6:
            yield label, words


def drop_seen(rows):
    """Exact repeats within a short window."""
    recent = deque(maxlen=16)
    for label, words in rows:
        for old in recent:
            if old == words:
                break
        else:
            recent.append(words)
            yield label, words


def drop_similar(rows, window, limit=0.6):
    """Near repeats by overlap of words."""
    recent = deque(maxlen=window)
    for label, words in rows:
        t0 = time.perf_counter()
        worst = 0.0
        for old in recent:
            shared = len(words & old)  # <- here
            worst = max(worst, shared / (len(words) + len(old) - shared))  # <- here
        SPENT[0] += time.perf_counter() - t0
        if worst < limit:
            recent.append(words)
            yield label, words


def to_ids(rows):
    index = {w: i for i, w in enumerate(WORDS)}
    for label, words in rows:
        bag = torch.zeros(len(WORDS))
        bag[[index[w] for w in words]] = 1.0
        yield bag, label


class Headlines(IterableDataset):
    def __init__(self, seed, strict):
        self.seed, self.strict = seed, strict

    def __iter__(self):
        rows = drop_seen(drop_short(headlines(random.Random(self.seed))))
        if self.strict:
            rows = drop_similar(rows, window=1400)
        yield from to_ids(rows)  # <- also


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(Headlines(seed=rank, strict=(rank == 1)), batch_size=64)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(len(WORDS), 1400), nn.ReLU(), nn.Linear(1400, 1400), nn.ReLU(), nn.Linear(1400, 8))
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    feed = iter(loader)
    for _ in range(2 + 1400 // 64):
        next(feed)
    SPENT[0] = 0.0
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        bags, labels = next(feed)  # <- also
        loss = nn.functional.cross_entropy(model(bags), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * SPENT[0] / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
