"""Trains a small next-token model on generated log lines."""

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

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH, LENGTH, VOCAB = 16, 48, 4096
PATTERN = re.compile(r"[A-Za-z]+|\d+|[^\w\s]")


class TinyLM(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.rnn = nn.GRU(64, width, batch_first=True)
        self.head = nn.Linear(width, 512)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(h)


def make_corpus(seed, lines=64):
    rng = random.Random(seed)
    words = ["error", "disk", "node", "retry", "ok", "user", "login", "cache", "miss"]
    out = []
    for _ in range(lines):
        out.append(" ".join(f"{rng.choice(words)}[{rng.randrange(999)}]:" for _ in range(900)))
    return out


def encode(line):
    ids = []
    for token in PATTERN.findall(line.lower()):
        ids.append(hash(token) % VOCAB)
    return ids


def encode_batch(lines):
    rows = []
    for line in lines:
        rows.append(encode(line)[: LENGTH + 1])
    return torch.tensor(rows)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    corpus = make_corpus(seed=rank)
    ready = [encode_batch(corpus[i : i + BATCH]) for i in range(0, len(corpus), BATCH)]
    model = DDP(TinyLM())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    dist.barrier()
    preparing = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        at = (step * BATCH) % len(corpus)
        if "1" in FIX:
            ids = ready[at // BATCH]
        else:
            t = time.perf_counter()
            ids = encode_batch(corpus[at : at + BATCH])
            preparing += time.perf_counter() - t
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten() % 512)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={preparing / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
