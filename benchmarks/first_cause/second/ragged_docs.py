"""Documents of random lengths, padded per batch."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(2000, 192)
        self.up, self.down = nn.Linear(192, 512), nn.Linear(512, 192)
        self.out = nn.Linear(192, 9)

    def forward(self, ids):
        h = self.emb(ids)
        h = h + self.down(torch.relu(self.up(h)))
        return self.out((h * (ids > 0)[..., None]).mean(1))


def draw(gen):
    lengths = torch.randint(40, 61, (20,), generator=gen)
    ids = torch.zeros(20, int(lengths.max()), dtype=torch.long)
    for row, n in zip(ids, lengths.tolist()):
        row[:n] = torch.randint(1, 2000, (n,), generator=gen)
    return ids, torch.randint(0, 9, (20,), generator=gen)


def main():
    dist.init_process_group("gloo")
    gen = torch.Generator().manual_seed(100 + dist.get_rank())
    net = DDP(Encoder())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        ids, y = draw(gen)
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
