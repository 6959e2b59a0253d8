"""Ad ranking: short epochs, area under the curve on the fly."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
PER_EPOCH, B = 10, 256
tables = {}


def load_tables(worker):
    text = json.dumps([[i, i % 97, f"campaign-{i % 311}"] for i in range(30000)])
    tables.update({i: (a, name) for i, a, name in json.loads(text)})


class Impressions(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return PER_EPOCH

    def __getitem__(self, i):
        rng = np.random.default_rng(i + 100 * self.rank)
        x = rng.standard_normal((B, 64)).astype(np.float32)
        x[:, 0] += tables[i][0]
        return torch.from_numpy(x), torch.from_numpy((x[:, 1] > 0.2).astype(np.float32))


class AUC:
    def __init__(self):
        self.recent = collections.deque(maxlen=8)

    def add(self, s, y):
        self.recent.append((s.tolist(), y.tolist()))

    def value(self):
        pairs = [(s, y) for ss, yy in self.recent for s, y in zip(ss, yy)]
        pos = [s for s, y in pairs if y]
        neg = [s for s, y in pairs if not y]
        wins = 0
        for p in pos:
            for n in neg:
                wins += p > n
        return wins / max(1, len(pos) * len(neg))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(
        Impressions(rank), batch_size=None, num_workers=1, worker_init_fn=load_tables, persistent_workers="1" in FIX
    )
    net = DDP(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
    opt = torch.optim.SGD(net.parameters(), 0.02)
    auc = AUC()
    times, it = [], iter(loader)
    for step in range(STEPS):
        t0 = time.perf_counter()
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(loader)
            x, y = next(it)
        out = net(x).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if "2" not in FIX:
            if rank == 0:
                c = time.perf_counter()
                auc.add(out.detach(), y)
                if step % 4 == 3:
                    auc.value()
                spent["auc"] += time.perf_counter() - c
            if step % 4 == 3:
                dist.barrier()
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
