"""Language model on ragged sequences; padding and masks are made by a collate function."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 24
TIMES = []


class Ragged(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = [[rng.randrange(1, 1000) for _ in range(rng.randrange(30, 64))] for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad_and_mask(rows):
    begin = time.perf_counter()
    width = max(map(len, rows))
    ids, bias = [], []
    for row in rows:
        ids.append(row + [0] * (width - len(row)))
        square = []
        for q in range(width):  # <- here
            line = []  # <- here
            for k in range(width):  # <- here
                visible = k <= q and k < len(row)  # <- here
                line.append(0.0 if visible else -1e4)  # <- here
            square.append(line)  # <- here
        bias.append(square)
    batch = torch.tensor(ids), torch.tensor(bias)
    TIMES.append(time.perf_counter() - begin)
    return batch


class TinyLM(nn.Module):
    def __init__(self, vocab=1000, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids, bias):
        h = self.embed(ids)
        q, k, v = self.qkv(h).chunk(3, -1)
        h = h + torch.softmax(q @ k.transpose(1, 2) / 10 + bias, -1) @ v
        return self.out(h + self.mlp(h))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(TinyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Ragged(BATCH * STEPS, rank), batch_size=BATCH, collate_fn=pad_and_mask, num_workers=0)
    begin = time.perf_counter()
    for ids, bias in loader:
        logits = model(ids, bias)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * sum(TIMES) / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
