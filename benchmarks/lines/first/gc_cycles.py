"""Sequence tagger (LSTM); a lattice of linked candidates is built for every batch."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 32
LENGTH = 40


class Sentences(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 2000, (n, LENGTH), generator=gen)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.ids[i] % 12


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(2000, 96)
        self.lstm = nn.LSTM(96, 128, batch_first=True)
        self.out = nn.Linear(128, 12)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


def link_candidates(tokens, width):
    lattice = []
    last = {"prev": None, "next": None}
    for token in tokens:  # <- here
        for _slot in range(width):  # <- here
            node = {"key": token, "prev": last, "next": None, "edges": []}  # <- here
            last["next"] = node  # <- here
            node["edges"].append(node)  # <- here
            lattice.append(node)  # <- here
            last = node  # <- here
    return len(lattice)


def train(rank):
    torch.manual_seed(0)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(Sentences(BATCH * STEPS, seed=rank), batch_size=BATCH)
    spent = 0.0
    begin = time.perf_counter()
    for ids, tags in loader:
        tokens = ids.flatten().tolist()
        t0 = time.perf_counter()
        link_candidates(tokens, 16)
        spent += time.perf_counter() - t0
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
    dist.destroy_process_group()
