"""Wide embedding tower; gradients averaged in one flat buffer."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(20000, 128)
        self.proj = nn.Linear(128, 128)

    def forward(self, a, b):
        return (self.proj(self.items(a)) * self.proj(self.items(b))).sum(-1)


def reduce_gradients(params, flat):
    i = 0
    for p in params:
        flat[i : i + p.numel()].copy_(p.grad.view(-1))
        i += p.numel()
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    i = 0
    for p in params:
        p.grad.copy_(flat[i : i + p.numel()].view_as(p))
        i += p.numel()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Tower()
    params = list(net.parameters())
    flat = torch.zeros(sum(p.numel() for p in params))
    opt = torch.optim.SGD(params, 0.1)
    torch.manual_seed(1 + dist.get_rank())
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        a, b = torch.randint(0, 20000, (2, 1024))
        loss = nn.functional.binary_cross_entropy_with_logits(net(a, b), (a % 2 == b % 2).float())
        opt.zero_grad(set_to_none=False)
        loss.backward()
        reduce_gradients(params, flat)
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
