"""Knowledge graph embeddings; triples and their negatives come from a small database."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sqlite3
import sys
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

STEPS = int(os.environ.get("STEPS", "50"))
ENTITIES, RELATIONS, TRIPLES = 3000, 4, 260_000
HEAVY = "select id from triple where r = ? order by weight * h % 97 limit 512"
ANY = "select id from triple where r = ? limit 4"
CLOCK = dict.fromkeys(["hard", "easy"], 0.0)


def fill(seed):
    rng = random.Random(seed)
    db = sqlite3.connect(":memory:")
    db.execute("create table triple (id integer primary key, h int, r int, t int, weight real)")
    rows = (
        (rng.randrange(ENTITIES), rng.randrange(RELATIONS), rng.randrange(ENTITIES), rng.random())
        for _ in range(TRIPLES)
    )
    db.executemany("insert into triple (h, r, t, weight) values (?, ?, ?, ?)", rows)
    db.commit()
    return db


class Triples(Dataset):
    def __init__(self, db):
        found = db.execute("select h, r, t from triple order by id").fetchall()
        self.table = torch.tensor(found)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        return self.table[i]


class RelationSampler(Sampler):
    """One batch per step, all of one relation, the heavy triples first."""

    def __init__(self, steps, query, count, seed):
        self.steps, self.query, self.count = steps, query, count
        self.rng = random.Random(seed)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            relation = self.rng.randrange(RELATIONS)
            assert self.count(relation)
            yield [ident - 1 for (ident,) in self.query(relation)]  # <- also


def timed(name, fn, *args):
    t0 = time.perf_counter()
    out = fn(*args)  # <- also
    CLOCK[name] += time.perf_counter() - t0
    return out


class TransE(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.ent = nn.Embedding(ENTITIES, dim)
        self.rel = nn.Embedding(RELATIONS, dim)
        self.lift = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, dim))

    def forward(self, h, r, t):
        return (self.lift(self.ent(h)) + self.rel(r) - self.lift(self.ent(t))).norm(dim=-1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    db = fill(rank)
    heavy = lambda rel: db.execute(HEAVY, (rel,)).fetchall()  # <- here
    any_of = lambda rel: db.execute(ANY, (rel,)).fetchall()
    sampler = RelationSampler(STEPS, partial(timed, "hard", heavy), partial(timed, "easy", any_of), rank)
    model = nn.parallel.DistributedDataParallel(TransE())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    feed = iter(DataLoader(Triples(db), batch_sampler=sampler, num_workers=1))
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        h, r, t = next(feed).unbind(1)  # <- also
        wrong = torch.randint(0, ENTITIES, t.shape)
        loss = torch.relu(1.0 + model(h, r, t) - model.module(h, r, wrong)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * CLOCK['hard'] / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
