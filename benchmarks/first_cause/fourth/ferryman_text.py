"""Sentence scorer; documents are dealt to the ranks sorted by length."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 16


class Docs(Dataset):
    def __init__(self, n):
        rng = random.Random(8)
        self.docs = [
            torch.randint(0, 500, (rng.randint(20, 140),), generator=torch.Generator().manual_seed(i)) for i in range(n)
        ]

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return self.docs[i]


class SortedShard(Sampler):
    """Hands out one contiguous share of the documents ordered by length."""

    def __init__(self, docs, rank, world):
        order = sorted(range(len(docs)), key=lambda i: len(docs[i]))
        share = len(order) // world
        mine = order[rank::world] if "1" in FIX else order[rank * share : (rank + 1) * share]
        self.mine = mine

    def __iter__(self):
        size = BATCH if "1" in FIX else 1
        groups = [self.mine[i : i + size] for i in range(0, len(self.mine), size)]
        random.Random(0).shuffle(groups)
        return iter([i for g in groups for i in g])

    def __len__(self):
        return len(self.mine)


def pad(batch):
    return nn.utils.rnn.pad_sequence(batch, batch_first=True)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(500, 96)
        self.q, self.k, self.v = (nn.Linear(96, 96) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 1))

    def forward(self, t):
        x = self.emb(t)
        a = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 10, -1)
        return self.mlp(a @ self.v(x)).mean()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    docs = Docs(STEPS * BATCH * world)
    net = DDP(Reader())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(docs, BATCH, sampler=SortedShard(docs, rank, world), collate_fn=pad)
    t0 = time.perf_counter()
    for tokens in loader:
        opt.zero_grad()
        net(tokens).square().backward()
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()
