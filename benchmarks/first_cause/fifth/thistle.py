"""Speech-command recogniser trained on buckets of similar length."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))
torch.set_num_threads(1)


class Utterances(Dataset):
    def __init__(self, n=1200):
        rng = random.Random(0)
        self.sizes = [min(200, int(12 * rng.paretovariate(0.9))) for _ in range(n)]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        return torch.randn(self.sizes[i], 40), i % 12


class ContiguousByLength(Sampler):
    """Every rank gets neighbours in length, so that padding stays small."""

    def __init__(self, sizes, rank, world, seed=0):
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        if "1" in FIX:
            self.mine = order[rank::world]
        else:
            share = len(order) // world
            self.mine = order[rank * share : (rank + 1) * share]
        self.seed = seed

    def __len__(self):
        return len(self.mine)

    def __iter__(self):
        blocks = [self.mine[i : i + 10] for i in range(0, len(self.mine) - 9, 10)]
        random.Random(self.seed).shuffle(blocks)
        for b in blocks:
            yield from b


def collate(rows):
    xs, ys = zip(*rows)
    return pad_sequence(xs, batch_first=True), torch.tensor(ys)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(40, 96)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True), 2)
        self.head = nn.Linear(96, 12)

    def forward(self, x):
        return self.head(self.enc(self.lift(x)).mean(1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Utterances()
    sampler = ContiguousByLength(data.sizes, rank, world)
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 10, drop_last=True), collate_fn=collate)
    model = nn.parallel.DistributedDataParallel(Recogniser())
    opt = torch.optim.AdamW(model.parameters(), 2e-4)
    seconds, n = 0.0, 0
    t = time.perf_counter()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        now = time.perf_counter()
        if n >= 2:
            seconds += now - t
        t = now
        n += 1
        if n == STEPS:
            break
    if rank == 0:
        print(f"{n} steps, mean step {seconds / (n - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
