"""Attention model over an endless stream with one lasting worker."""

# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

STEPS = int(os.environ.get("STEPS", "40"))


class Stream(IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        g = torch.Generator().manual_seed(self.rank)
        while True:
            yield torch.randint(0, 200, (16, 48), generator=g)


class Glass(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(200, 96)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0) for _ in range(2)
        )
        self.out = nn.Linear(96, 200)

    def forward(self, t):
        x = self.emb(t)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(Glass())
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    feed = iter(DataLoader(Stream(rank), batch_size=None, num_workers=1))
    next(feed)
    dist.barrier()
    t0 = time.perf_counter()
    for t in itertools.islice(feed, STEPS):
        opt.zero_grad()
        nn.functional.cross_entropy(net(t)[:, :-1].flatten(0, 1), t[:, 1:].flatten()).backward()
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    del feed
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
