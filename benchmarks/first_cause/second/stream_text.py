"""Streaming text: every rank tokenises its own lines on the fly."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import random
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class Lines(IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        rng = random.Random(self.rank)
        words = ["".join(rng.choices("abcdefghij", k=5)) for _ in range(500)]
        while True:
            line = " ".join(rng.choices(words, k=40))
            yield [zlib.crc32(w.lower().encode()) % 4096 for w in line.split()]


def pack(rows):
    return torch.tensor(rows)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = iter(DataLoader(Lines(rank), batch_size=192, collate_fn=pack))
    net = DDP(nn.Sequential(nn.EmbeddingBag(4096, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        ids = next(loader)
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 64)
        opt.zero_grad()
        loss.backward()
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
