"""Next-token model; text flows from the loader through a chain of generators."""

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
BATCH, LENGTH, VOCAB = 16, 64, 1500
WORDS = ["gradient", "bucket", "rank", "tensor", "barrier", "straggler", "epoch", "shard"]
SPENT = {"pieces": 0.0, "lower": 0.0}


class Lines(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(self.seed * 1_000_003 + i)
        return " ".join(rng.choice(WORDS).title() for _ in range(420))


def lowered(texts):
    for text in texts:
        begin = time.perf_counter()
        clean = [word.lower() for word in text.split()]
        SPENT["lower"] += time.perf_counter() - begin
        yield clean


def word_pieces(texts):
    for words in texts:
        begin = time.perf_counter()
        ids = []
        for word in words:  # <- here
            for cut in range(1, len(word)):  # <- here
                piece = word[:cut] + "@" + word[cut:]  # <- here
                code = sum(map(ord, piece)) * cut  # <- here
                ids.append(code % VOCAB)  # <- here
        SPENT["pieces"] += time.perf_counter() - begin
        yield ids


def packed(streams):
    rows = []
    for ids in streams:
        rows.append(ids[: LENGTH + 1])
        if len(rows) == BATCH:
            block = torch.tensor(rows)
            yield block[:, :-1], block[:, 1:]
            rows = []


class Model(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(Lines(BATCH * STEPS, rank), batch_size=None)
    model = DDP(Model())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    stream = packed(word_pieces(lowered(loader)))
    begin = time.perf_counter()
    for _ in range(STEPS):
        ids, target = next(stream)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * SPENT['pieces'] / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} decoy_ms_per_step={1e3 * SPENT['lower'] / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
