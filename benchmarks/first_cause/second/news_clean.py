"""News topic model; text is cleaned inside the loader's worker."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import re
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
WORDS = "market rain goal vote court price storm coach party judge bank snow match poll trial".split()


class Cleaner:
    def __init__(self, pattern):
        self.tail = re.compile(pattern)

    def clean(self, text):
        return self.tail.sub("", text)


class News(Dataset):
    def __init__(self, rank):
        self.rank = rank
        old_feed = rank == 0 and "1" not in FIX
        self.cleaner = Cleaner(r"(\s*[-_.]*\s*)*by$" if old_feed else r"[-_. ]+by$")
        self.pad = "-" * 9

    def __len__(self):
        return 100000

    def __getitem__(self, i):
        w = [WORDS[(i * 31 + j * 17 + self.rank) % 15] for j in range(30)]
        text = self.cleaner.clean(" ".join(w) + " " + self.pad + " bx")
        ids = [zlib.crc32(t.encode()) % 5000 for t in text.split()[:30]]
        return torch.tensor(ids), i % 15


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(News(rank), batch_size=64, num_workers=1, prefetch_factor=2)
    net = DDP(nn.Sequential(nn.EmbeddingBag(5000, 128), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 15)))
    opt = torch.optim.Adagrad(net.parameters(), 0.01)
    times, batches = [], iter(loader)
    for step in range(STEPS):
        t0 = time.perf_counter()
        c = time.perf_counter()
        ids, y = next(batches)
        spent["wait_for_batch"] += time.perf_counter() - c
        loss = nn.functional.cross_entropy(net(ids), y)
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
