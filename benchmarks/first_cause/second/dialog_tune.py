"""Dialogue tuning with gathered transcripts and uploads to an object store."""

# SPDX-License-Identifier: Apache-2.0
import collections
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


class ThrottledStore:
    """Client of an object store that answers 503 above its request rate."""

    def __init__(self):
        self.calls, self.kept = 0, {}

    def _request(self, key, value):
        self.calls += 1
        if self.calls % 3:
            raise ConnectionError("503")
        self.kept[key] = len(value)

    def put(self, key, value):
        pause = 0.015
        while True:
            try:
                return self._request(key, value)
            except ConnectionError:
                time.sleep(pause)
                pause *= 2


def transcripts(logits, ids):
    best = logits.argmax(-1)
    return [
        {"prompt": a, "reply": b, "scores": s}
        for a, b, s in zip(ids.tolist(), best.tolist(), logits[:, :, :56].tolist())
    ]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = DDP(
        nn.Sequential(
            nn.Embedding(512, 128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 512)
        )
    )
    opt = torch.optim.AdamW(net.parameters(), 1e-4)
    store = ThrottledStore()
    times, log = [], []
    for step in range(STEPS):
        t0 = time.perf_counter()
        ids = torch.randint(0, 512, (8, 24))
        logits = net(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if "2" not in FIX:
            c = time.perf_counter()
            mine = transcripts(logits.detach(), ids)
            every = [None] * world
            dist.all_gather_object(every, mine)
            log.append(sum(len(e) for e in every))
            spent["gather"] += time.perf_counter() - c
        if rank == 2 and step % 3 == 2 and "1" not in FIX:
            c = time.perf_counter()
            store.put(f"{step}.json", json.dumps(log))
            spent["put"] += time.perf_counter() - c
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
