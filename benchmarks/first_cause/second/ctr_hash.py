"""Click-through-rate model: hashed categorical features, DDP over gloo."""

# SPDX-License-Identifier: Apache-2.0
import collections
import hashlib
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
FIELDS, BUCKETS = 16, 20000


class FeatureHasher:
    def __init__(self, buckets, schema):
        self.buckets = buckets
        self.schema = schema
        self.salt = np.arange(1, FIELDS + 1, dtype=np.int64) * 7919

    def encode(self, rows):
        if self.schema == "v2":
            return torch.from_numpy((rows * 2654435761 + self.salt) % self.buckets)
        out = []
        for row in rows.tolist():
            out.append(
                [int(hashlib.md5(f"{i}={v}".encode()).hexdigest(), 16) % self.buckets for i, v in enumerate(row)]
            )
        return torch.tensor(out)


class CTR(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(BUCKETS, 32, mode="mean", sparse=False)
        self.mlp = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, ids):
        return self.mlp(self.emb(ids)).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = np.random.default_rng(rank)
    schema = "v1" if rank == 1 and "1" not in FIX else "v2"
    hasher = FeatureHasher(BUCKETS, schema)
    model = DDP(CTR())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        rows = rng.integers(0, 1 << 20, size=(768, FIELDS))
        click = torch.from_numpy((rows[:, 0] % 3 == 0).astype(np.float32))
        c = time.perf_counter()
        ids = hasher.encode(rows)
        spent["encode"] += time.perf_counter() - c
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), click)
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


if __name__ == "__main__":
    main()
