"""Visual question answering: four pipeline stages over send/recv."""

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
T, D, MICRO = 64, 192, 3
FULL = 800


class Link:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def push(self, h, mask):
        dist.send(h, self.rank + 1)
        if "2" not in FIX:
            c = time.perf_counter()
            dist.send(mask, self.rank + 1)
            spent["mask"] += time.perf_counter() - c

    def pull(self, mask):
        h = torch.empty(4, T, D)
        dist.recv(h, self.rank - 1)
        if "2" not in FIX:
            mask = torch.empty_like(mask)
            dist.recv(mask, self.rank - 1)
        return h, mask


class SpanMarker:
    """Marks answer spans from token saliency."""

    levels = [12.0 + 0.25 * i for i in range(10)]

    def mark(self, h):
        spans = []
        for row in h.norm(dim=-1).tolist():
            best, where = -1e9, (0, 0)
            for level in self.levels:
                for i in range(len(row)):
                    s = 0.0
                    for j in range(i, len(row)):
                        s += row[j] - level
                        if s > best:
                            best, where = s, (i, j)
            spans.append(where)
        return spans


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.v = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, h, mask):
        w = (self.a(h) @ h.transpose(1, 2) / D**0.5 + mask[:T, :T]).softmax(-1)
        return h + torch.relu(self.v(w @ h))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage, link, marker = Stage(), Link(rank, world), SpanMarker()
    opt = torch.optim.SGD(stage.parameters(), 1e-4)
    causal = torch.triu(torch.full((FULL, FULL), -1e4), 1)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        live = []
        for m in range(MICRO):
            h, mask = (torch.randn(4, T, D), causal) if rank == 0 else link.pull(causal)
            h.requires_grad_()
            out = stage(h, mask)
            if rank == 2 and "1" not in FIX:
                c = time.perf_counter()
                marker.mark(out.detach())
                spent["mark"] += time.perf_counter() - c
            if rank < world - 1:
                link.push(out.detach(), mask)
            live.append((h, out))
        for h, out in live:
            if rank == world - 1:
                out.pow(2).mean().backward()
            else:
                g = torch.empty_like(out)
                dist.recv(g, rank + 1)
                out.backward(g)
            if rank:
                dist.send(h.grad, rank - 1)
        opt.step()
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
