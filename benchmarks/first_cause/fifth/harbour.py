"""Acoustic event tagging on ragged feature sequences (GRU), two ranks, one loader worker each."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "")
N_STEPS = int(os.environ.get("STEPS", "40"))


class Clips(Dataset):
    def __init__(self, count, rank):
        g = np.random.default_rng(100 + rank)
        self.items = [g.standard_normal((int(g.integers(50, 64)), 40)).astype("float32") for _ in range(64)]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.items[i % 64], i % 10


def pad_and_pack(samples):
    longest = max(len(f) for f, _ in samples)
    if "1" in FIX:
        out = torch.zeros(len(samples), longest, 40)
        for k, (f, _) in enumerate(samples):
            out[k, : len(f)] = torch.from_numpy(f)
    else:
        rows = []
        for f, _ in samples:
            frames = [[float(v) for v in frame] for frame in f]
            while len(frames) < longest:
                frames.append([0.0] * 40)
            rows.append(frames)
        out = torch.tensor(rows)
    return out, torch.tensor([y for _, y in samples])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(40, 64)
        self.rnn = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        h, _ = self.rnn(torch.relu(self.proj(x)))
        return self.head(h.mean(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = nn.parallel.DistributedDataParallel(Tagger())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    loader = DataLoader(Clips(N_STEPS * 40, rank), batch_size=40, num_workers=1, collate_fn=pad_and_pack)
    marks = [time.time()]
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        marks.append(time.time())
    if rank == 0:
        d = np.diff(marks)[2:]
        print("done; mean step %.1f ms" % (d.mean() * 1e3))
    dist.destroy_process_group()
