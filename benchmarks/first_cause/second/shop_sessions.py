"""Next-item prediction from a sqlite session store."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import random
import sqlite3
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
ITEMS, USERS = 2000, 1500


class SessionStore:
    def __init__(self, seed):
        self.db = sqlite3.connect(":memory:")
        rng = random.Random(seed)
        self.db.execute("create table clicks(user integer, at integer, item integer)")
        self.db.executemany(
            "insert into clicks values(?,?,?)", ((rng.randrange(USERS), t, rng.randrange(ITEMS)) for t in range(12000))
        )
        if "1" in FIX:
            self.db.execute("create index by_user on clicks(user, at)")
        self.db.commit()

    def fetch(self, user, n):
        rows = self.db.execute("select item from clicks where user=? order by at desc limit ?", (user, n)).fetchall()
        items = [r[0] for r in rows]
        return items + [0] * (n - len(items))


class NextItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(ITEMS, 64)
        self.rnn = nn.GRU(64, 128, batch_first=True)
        self.out = nn.Linear(128, ITEMS)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0][:, -1])


def average(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    i = 0
    for p in model.parameters():
        p.grad.copy_(flat[i : i + p.numel()].view_as(p))
        i += p.numel()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = SessionStore(rank)
    torch.manual_seed(0)
    net = NextItem()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    pick = random.Random(rank)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        c = time.perf_counter()
        seqs = torch.tensor([store.fetch(pick.randrange(USERS), 9) for _ in range(32)])
        spent["fetch"] += time.perf_counter() - c
        loss = nn.functional.cross_entropy(net(seqs[:, :-1].repeat(3, 1)), seqs[:, -1].repeat(3))
        opt.zero_grad()
        loss.backward()
        average(net)
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
