"""Trains attention over a sequence spread on a ring of ranks."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
LOCAL, WIDTH = 144, 128
USE_CACHE = {0: True, 1: True, 2: "1" in FIX, 3: True}


class Masks:
    """Causal masks between the part of one rank and that of another."""

    def __init__(self, rank):
        self.rank = rank
        self.cache = {}
        self.seconds = 0.0

    def build(self, other):
        rows = []
        for i in range(LOCAL):
            row = []
            for j in range(LOCAL):
                row.append(0.0 if other * LOCAL + j <= self.rank * LOCAL + i else -1e9)
            rows.append(row)
        return torch.tensor(rows)

    def get(self, other):
        if USE_CACHE[self.rank]:
            if other not in self.cache:
                self.cache[other] = self.build(other)
            return self.cache[other]
        t = time.perf_counter()
        mask = self.build(other)
        self.seconds += time.perf_counter() - t
        return mask


def rotate(block, rank, world):
    """Passes a block of keys and values on to the next rank."""
    got = torch.empty_like(block)
    sent = dist.isend(block, (rank + 1) % world)
    dist.recv(got, (rank - 1) % world)
    sent.wait()
    return got


def ring_attention(q, kv, masks, rank, world):
    top, norm = 0.0, 0.0
    block = kv
    for hop in range(world):
        k, v = block.chunk(2, dim=-1)
        score = q @ k.t() / WIDTH**0.5 + masks.get((rank - hop) % world)
        weight = score.clamp(max=20.0).exp()
        top = top + weight @ v
        norm = norm + weight.sum(-1, keepdim=True)
        if hop < world - 1:
            block = rotate(block.detach(), rank, world)
    return top / norm


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    to_q, to_kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
    mlp = nn.Sequential(nn.Linear(WIDTH, 768), nn.GELU(), nn.Linear(768, WIDTH))
    params = [*to_q.parameters(), *to_kv.parameters(), *mlp.parameters()]
    opt = torch.optim.Adam(params, lr=1e-3)
    masks = Masks(rank)
    for other in range(world):
        masks.get(other)
    masks.seconds = 0.0

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(LOCAL, WIDTH)
        h = x + ring_attention(to_q(x), to_kv(x), masks, rank, world)
        loss = (h + mlp(h) - x.roll(1, 0)).square().mean()
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        torch.nn.utils.vector_to_parameters(flat / world, [p.grad for p in params])
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={masks.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
