"""Trains with one server rank that keeps the optimizer for all."""

# SPDX-License-Identifier: Apache-2.0
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
EPOCH = 6


class Shard:
    """Batches of one rank; a shard on cold storage must be opened each epoch."""

    def __init__(self, opening):
        self.opening = opening
        self.rows = torch.randn(512, 256)
        self.seconds = 0.0

    def open(self):
        t = time.perf_counter()
        time.sleep(self.opening)
        self.seconds += time.perf_counter() - t

    def batch(self, step):
        if step % EPOCH == 0 and self.opening:
            self.open()
        return self.rows[torch.randint(0, 512, (48,))]


class Server:
    """Adam on the averaged gradients, in slices, on rank 0."""

    def __init__(self, params, sliced):
        self.params, self.sliced = params, sliced
        self.m = [torch.zeros_like(p).flatten() for p in params]
        self.v = [torch.zeros_like(p).flatten() for p in params]
        self.fused = torch.optim.Adam(params, lr=1e-3)
        self.seconds = 0.0

    def slice_step(self, p, g, m, v, t):
        scale = math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for at in range(0, len(g), 1024):
            cut = slice(at, at + 1024)
            m[cut].mul_(0.9).add_(g[cut], alpha=0.1)
            v[cut].mul_(0.999).addcmul_(g[cut], g[cut], value=0.001)
            p[cut].addcdiv_(m[cut], v[cut].sqrt().add_(1e-8), value=-1e-3 * scale)

    @torch.no_grad()
    def step(self, t):
        began = time.perf_counter()
        if not self.sliced:
            self.fused.step()
            return
        for p, m, v in zip(self.params, self.m, self.v):
            self.slice_step(p.view(-1), p.grad.flatten(), m, v, t)
        self.seconds += time.perf_counter() - began


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, 1))
    params = list(model.parameters())
    shard = Shard(0.3 if rank == 2 and "1" not in FIX else 0)
    server = Server(params, sliced="2" not in FIX)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = shard.batch(step)
        loss = (model(x).squeeze(1) - x.mean(1)).square().mean()
        model.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in params]) / world
        dist.reduce(flat, dst=0)
        if rank == 0:
            torch.nn.utils.vector_to_parameters(flat, [p.grad for p in params])
            server.step(step + 1)
        weights = torch.nn.utils.parameters_to_vector(params).detach()
        dist.broadcast(weights, src=0)
        torch.nn.utils.vector_to_parameters(weights, params)
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={shard.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={server.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
