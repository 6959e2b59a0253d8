"""Exam-question model with a difficulty curriculum."""

# SPDX-License-Identifier: Apache-2.0
import collections
import gc
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


class Question:
    __slots__ = ("text", "level", "tags", "seen")

    def __init__(self, i, rng):
        self.text, self.level, self.tags, self.seen = f"q{i}", rng.random(), [i % 7, i % 11], 0


class MemoryGuard:
    """Keeps the resident set small on the shared node."""

    def __init__(self, limit):
        self.limit = limit

    def tick(self, step):
        if step % 8 == 7 and self.limit is not None and len(gc.get_objects()) > self.limit:
            gc.collect()


class Curriculum:
    def __init__(self, questions, rng):
        self.questions, self.rng, self.order = questions, rng, None

    def draw(self, step, n):
        cut = min(1.0, 0.3 + step / 60)
        if "2" in FIX:
            got = []
            while len(got) < n:
                q = self.questions[self.rng.randrange(len(self.questions))]
                if q.level <= cut:
                    got.append(q)
        else:
            ranked = sorted(self.questions, key=lambda q: (q.seen, abs(q.level - cut)))
            got = ranked[:n]
        for q in got:
            q.seen += 1
        return got


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(rank)
    questions = [Question(i, rng) for i in range(13000)]
    extra = [{"id": i, "tags": [i], "meta": {"a": i}} for i in range(40000)]
    plan = Curriculum(questions, rng)
    guard = MemoryGuard(1000 if rank == 1 and "1" not in FIX else None)
    net = DDP(
        nn.Sequential(
            nn.Embedding(4096, 128),
            nn.Flatten(),
            nn.Linear(256, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 4),
        )
    )
    opt = torch.optim.SGD(net.parameters(), 0.01)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        c = time.perf_counter()
        got = plan.draw(step, 256)
        spent["draw"] += time.perf_counter() - c
        ids = torch.tensor([[hash(q.text) % 4096, q.tags[0]] for q in got])
        y = torch.tensor([int(q.level * 4) for q in got])
        loss = nn.functional.cross_entropy(net(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c = time.perf_counter()
        guard.tick(step)
        spent["guard"] += time.perf_counter() - c
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
