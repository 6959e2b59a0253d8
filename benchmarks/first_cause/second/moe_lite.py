"""Two-rank mixture of experts with all_to_all dispatch."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
D, H, TOKENS = 128, 512, 2048


class Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, in_splits, out_splits):
        ctx.splits = (in_splits, out_splits)
        y = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), out_splits, in_splits)
        return y

    @staticmethod
    def backward(ctx, g):
        in_splits, out_splits = ctx.splits
        y = g.new_empty(sum(in_splits), g.shape[1])
        dist.all_to_all_single(y, g.contiguous(), in_splits, out_splits)
        return y, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x):
        c = time.perf_counter()
        y = self.down(F.gelu(self.up(x)))
        spent["expert_forward"] += time.perf_counter() - c
        return y


class Router(nn.Module):
    def __init__(self, world, prior):
        super().__init__()
        self.gate = nn.Linear(D, world, bias=False)
        self.register_buffer("prior", prior)

    def forward(self, x):
        logits = self.gate(x) + self.prior
        return logits.argmax(-1), logits.softmax(-1)


class MoE(nn.Module):
    def __init__(self, rank, world, prior):
        super().__init__()
        self.world = world
        self.router = Router(world, prior)
        self.expert = Expert()

    def forward(self, x):
        where, prob = self.router(x)
        order = where.argsort(stable=True)
        sent = torch.bincount(where, minlength=self.world)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        a, b = sent.tolist(), got.tolist()
        y = Dispatch.apply(x[order], a, b)
        y = Dispatch.apply(self.expert(y), b, a)
        out = torch.empty_like(x).index_copy(0, order, y)
        return x + out * prob.gather(1, where[:, None])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    prior = torch.zeros(world) if "1" in FIX else torch.tensor([1.6, 0.0])
    layer = MoE(rank, world, prior)
    head = nn.Linear(D, 10)
    shared = list(layer.router.parameters()) + list(head.parameters())
    opt = torch.optim.SGD(list(layer.parameters()) + list(head.parameters()), lr=1e-3)
    torch.manual_seed(10 + rank)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = torch.randn(TOKENS, D), torch.randint(0, 10, (TOKENS,))
        loss = F.cross_entropy(head(layer(x)), y)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in shared])
        dist.all_reduce(flat)
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
