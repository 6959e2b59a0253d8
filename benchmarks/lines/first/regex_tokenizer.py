"""Bag-of-tokens model; the documents of rank 1's shard are long and its first batch the longest."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import re
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "70"))
BATCH, BUCKETS = 16, 4096
TOKEN = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]+(?:'[a-z]+)?|\s+(?=\S)|[^\sA-Za-z\d]+|\s+")
WORDS = ["loss", "isn't", "3.14159", "rank-0", "(all_reduce)", "Tensor's", "42", "--", "epoch"]


class Documents(Dataset):
    def __init__(self, n, rank):
        rng = random.Random(rank)
        self.n = n
        self.normal = " ".join(rng.choice(WORDS) for _ in range(3000 if rank == 1 else 40))
        self.first = self.normal * (12 if rank == 1 else 1)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.first if i < BATCH else self.normal


class Tokenizer:
    def __init__(self):
        self.seconds = []

    def split(self, text):
        return TOKEN.findall(text)  # <- here

    def encode(self, texts):
        begin = time.perf_counter()
        pieces = list(map(self.split, texts))
        self.seconds.append(time.perf_counter() - begin)
        rows = [[len(p) * 37 % BUCKETS for p in piece[:64]] for piece in pieces]
        return torch.tensor(rows)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, 256)
        self.net = nn.Sequential(nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 3))

    def forward(self, ids):
        return self.net(self.bag(ids))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(Documents(BATCH * STEPS, rank), batch_size=BATCH, collate_fn=list)
    tokenizer = Tokenizer()
    model = DDP(Bag())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = time.perf_counter()
    for texts in loader:
        ids = tokenizer.encode(texts)
        loss = nn.functional.cross_entropy(model(ids), torch.zeros(len(ids), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    spent = tokenizer.seconds
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * sum(spent) / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} first_batch_ms={1e3 * spent[0]:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
