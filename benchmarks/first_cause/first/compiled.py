"""Trains a compiled network on batches of varying length."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import time

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH, WIDTH = 24, 192
torch._dynamo.config.recompile_limit = 200
torch._dynamo.config.accumulated_recompile_limit = 400


class Mixer(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x):
        for norm, up, down in zip(self.norms, self.ups, self.downs):
            h = norm(x)
            h = h + h.cumsum(1) / h.shape[1]
            x = x + down(torch.relu(up(h)))
        return x


def reduce_gradients(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in params])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Mixer()
    run = torch.compile(model, backend="eager", dynamic="1" in FIX)
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=1e-3)
    lengths = random.Random(7)
    for length in (16, 17):
        run(torch.randn(BATCH, length, WIDTH)).sum().backward()
    reduce_gradients(params)
    torch.manual_seed(rank)

    dist.barrier()
    seen, fresh, again = set(), [], []
    begin = time.perf_counter()
    for step in range(STEPS):
        length = lengths.randrange(40, 54)
        x = torch.randn(BATCH, length, WIDTH)
        t = time.perf_counter()
        y = run(x)
        (again if length in seen else fresh).append(time.perf_counter() - t)
        seen.add(length)
        loss = (y - x.roll(1, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        reduce_gradients(params)
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    extra = sum(fresh) - len(fresh) * sorted(again)[len(again) // 2] if "1" not in FIX else 0.0
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={extra / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
