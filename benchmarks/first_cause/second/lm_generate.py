"""Small character LM; prints a continuation now and then."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
V, D, T, B = 64, 96, 64, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, 4, D // 4).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, D))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(D, V)

    def forward(self, ids):
        return self.out(self.blocks(self.tok(ids) + self.pos.weight[: ids.shape[1]]))


@torch.no_grad()
def sample_text(lm, length):
    ids = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(length):
        logits = lm(ids[:, -T:])[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
    return "".join(chr(32 + i) for i in ids[0].tolist())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lm = LM()
    ddp = DDP(lm)
    opt = torch.optim.AdamW(ddp.parameters(), 3e-4)
    length = 60 if "1" not in FIX else 0
    times, shown = [], []
    for step in range(STEPS):
        t0 = time.perf_counter()
        ids = torch.randint(0, V, (B, T + 1))
        loss = F.cross_entropy(ddp(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 6 == 5 and length:
            c = time.perf_counter()
            shown.append(sample_text(lm, length))
            spent["sample"] += time.perf_counter() - c
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
