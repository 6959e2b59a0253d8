"""Central optimiser: gradients are reduced to rank 0, new weights broadcast to all."""

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


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 32))
    params = list(net.parameters())
    opt = torch.optim.SGD(params, 0.01)
    torch.manual_seed(rank)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = torch.randn(256, 128), torch.randint(0, 32, (256,))
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in params])
        dist.reduce(flat, 0)
        if rank == 0:
            i = 0
            for p in params:
                p.grad.copy_(flat[i : i + p.numel()].view_as(p)).div_(world)
                i += p.numel()
            opt.step()
        weights = nn.utils.parameters_to_vector(params).detach()
        dist.broadcast(weights, 0)
        nn.utils.vector_to_parameters(weights, params)
        opt.zero_grad()
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
