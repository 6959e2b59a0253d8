"""Gradient-averaged regression; a run history is kept for the dashboard."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class RunHistory:
    def __init__(self, folder):
        self.path = os.path.join(folder, "history.json")
        self.tail = os.path.join(folder, "history.jsonl")
        self.events = [{"step": -i, "loss": 1.0 / (i + 1), "grads": [0.5] * 12} for i in range(420, 0, -1)]

    def append(self, event):
        self.events.append(event)
        if "1" in FIX:
            with open(self.tail, "a") as f:
                f.write(json.dumps(event) + "\n")
            return
        text = json.dumps(self.events, indent=2, sort_keys=True)
        with open(self.path, "w") as f:
            f.write(text)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 12))
    opt = torch.optim.SGD(net.parameters(), 0.01)
    torch.manual_seed(rank)
    history = RunHistory(tempfile.mkdtemp()) if rank == 0 else None
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        for micro in range(2):
            x = torch.randn(256, 64)
            (net(x) - x[:, :12].sin()).pow(2).mean().backward()
        norms = []
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2 * world
            norms.append(float(p.grad.norm()))
        opt.step()
        opt.zero_grad()
        if history is not None:
            c = time.perf_counter()
            history.append({"step": step, "loss": norms[0], "grads": norms + norms})
            spent["history"] += time.perf_counter() - c
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
