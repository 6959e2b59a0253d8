"""Topic classifier on dense document vectors, plain DDP."""

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


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = DDP(nn.Sequential(nn.Linear(300, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 40)))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=STEPS + 1)
    times, running = [], 0.0
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = torch.randn(640, 300), torch.randint(0, 40, (640,))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        running = 0.9 * running + 0.1 * loss.item()
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
