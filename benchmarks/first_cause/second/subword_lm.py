"""Language model on sub-words with four accumulated micro-batches."""

# SPDX-License-Identifier: Apache-2.0
import collections
import contextlib
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
ACCUM, B, T, V = 4, 4, 40, 600


class SubWords:
    def __init__(self, cached):
        self.merges = {}
        rng = random.Random(0)
        letters = "etaoinshrdlucmfw"
        while len(self.merges) < 200:
            self.merges.setdefault((rng.choice(letters), rng.choice(letters)), len(self.merges))
        self.known = {} if cached else None
        self.ids = {}

    def split(self, word):
        if self.known is not None and word in self.known:
            return self.known[word]
        parts = list(word)
        while len(parts) > 1:
            ranked = [(self.merges.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            best, i = min(ranked)
            if best == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        out = [self.ids.setdefault(p, len(self.ids) % V) for p in parts]
        if self.known is not None:
            self.known[word] = out
        return out


def batch_of(rng, vocab, subwords):
    rows = []
    for _ in range(B):
        ids = []
        while len(ids) <= 10 * T:
            ids += subwords.split(rng.choice(vocab))
        rows.append(ids[-T - 1 :])
    return torch.tensor(rows)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn = (
            nn.Embedding(V, 128),
            nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 400), nn.ReLU()),
        )
        self.out = nn.Linear(400, V)

    def forward(self, x):
        h = self.emb(x)
        return self.out(self.rnn(h.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(rank)
    vocab = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(4, 18))) for _ in range(400)]
    subwords = SubWords(cached=rank != 1 or "1" in FIX)
    for w in vocab:
        subwords.split(w)
    net = DDP(LM())
    opt = torch.optim.SGD(net.parameters(), 0.05)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        opt.zero_grad()
        for micro in range(ACCUM):
            c = time.perf_counter()
            ids = batch_of(rng, vocab, subwords)
            spent["tokens"] += time.perf_counter() - c
            quiet = net.no_sync() if "2" in FIX and micro < ACCUM - 1 else contextlib.nullcontext()
            with quiet:
                loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                (loss / ACCUM).backward()
        opt.step()
        times.append(time.perf_counter() - t0)
    finish(times)


def finish(times):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(spent))
    if dist.get_rank() == 0:
        kept = times[5:]
        keys = sorted({k for e in everyone for k in e})
        body = {
            "step_ms": round(1e3 * sum(kept) / len(kept), 2),
            "per_step_ms": {k: [round(1e3 * e.get(k, 0.0) / len(times), 2) for e in everyone] for k in keys},
        }
        print("TRUTH " + json.dumps(body), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
