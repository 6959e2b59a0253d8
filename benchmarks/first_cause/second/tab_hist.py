"""Tabular regression with gradient histograms for two of the replicas."""

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

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class GradHistogram:
    def __init__(self, name, bins=64):
        self.name, self.bins = name, bins
        self.total = np.zeros(bins)

    def __call__(self, grad):
        c = time.perf_counter()
        g = grad.detach().numpy().ravel()
        edges = np.quantile(g, np.linspace(0, 1, self.bins + 1))
        self.total += np.histogram(g, edges + np.arange(self.bins + 1) * 1e-12)[0]
        spent["hist"] += time.perf_counter() - c


def attach(model):
    for name, p in model.named_parameters():
        if p.dim() == 2:
            p.register_hook(GradHistogram(name))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1))
    if rank in (1, 3) and "1" not in FIX:
        attach(net)
    ddp = DDP(net)
    opt = torch.optim.Adam(ddp.parameters(), 1e-3)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x = torch.randn(400, 128)
        loss = (ddp(x) - x.sum(1, keepdim=True)).pow(2).mean()
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
