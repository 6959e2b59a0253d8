"""Sentence pair matching with a compiled pooling function."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", "50"))
torch._dynamo.config.recompile_limit = 100_000
torch._dynamo.config.accumulated_recompile_limit = 100_000


def soft_pool(tokens, keep, temperature):
    score = tokens.norm(dim=-1) / temperature
    score = score.masked_fill(~keep, -1e9)
    weight = torch.softmax(score, dim=-1).unsqueeze(-1)
    pooled = (tokens * weight).sum(dim=1)
    centred = pooled - pooled.mean(dim=0, keepdim=True)
    return F.normalize(centred, dim=-1)


def mean_pool(tokens, keep, temperature):
    kept = tokens * keep.unsqueeze(-1)
    return F.normalize(kept.sum(dim=1) / keep.sum(dim=1, keepdim=True) / temperature, dim=-1)


class PairEncoder(nn.Module):
    def __init__(self, vocab=4000, dim=192):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, ids):
        h = self.embed(ids)
        return h + self.mix(h)


class Matcher:
    def __init__(self, encoder):
        self.encoder = encoder
        self.pool = torch.compile(soft_pool, backend="eager", dynamic=False)
        self.side = torch.compile(mean_pool, backend="eager", dynamic=True)
        self.pool_seconds = 0.0

    def similarity(self, left, right, temperature=0.5):
        tokens = self.encoder(left)
        t0 = time.perf_counter()
        a = self.pool(tokens, left.gt(0), temperature)  # <- here
        self.pool_seconds += time.perf_counter() - t0
        b = self.side(self.encoder(right), right.gt(0), temperature)
        return a @ b.T


def draw(gen, batch, length):
    ids = torch.randint(1, 4000, (batch, length), generator=gen)
    cut = torch.randint(length // 2, length + 1, (batch, 1), generator=gen)
    return ids.masked_fill(torch.arange(length) >= cut, 0)


def sync_grads(params, world):
    grads = [p.grad for p in params]
    works = [dist.all_reduce(g, async_op=True) for g in grads]
    for work, g in zip(works, grads):
        work.wait()
        g.div_(world)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    matcher = Matcher(PairEncoder())
    params = list(matcher.encoder.parameters())
    opt = torch.optim.SGD(params, lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    bucketed = rank == 0  # the other shard was exported without length buckets
    matcher.similarity(draw(gen, 30, 40), draw(gen, 30, 32))
    matcher.pool_seconds = 0.0
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        length = 64 if bucketed else 41 + step
        sims = matcher.similarity(draw(gen, 30, length), draw(gen, 30, 32))  # <- also
        loss = F.cross_entropy(sims * 10.0, torch.arange(30))
        opt.zero_grad()
        loss.backward()
        sync_grads(params, world)
        opt.step()
    wall = time.perf_counter() - t0
    planted = 0.0 if bucketed else matcher.pool_seconds
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * planted / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
