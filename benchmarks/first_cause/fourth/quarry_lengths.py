"""Rock-layer tagger over well logs of ever new lengths, with a compiled model."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
torch._dynamo.config.cache_size_limit = 128
torch.set_num_threads(1)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mix = nn.Conv1d(d, d, 5, padding=2)
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Linear(d, d)

    def forward(self, x):
        y = self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.ff(torch.relu(self.norm(y)))


class Tagger(nn.Module):
    def __init__(self, d=96, n=4):
        super().__init__()
        self.layers = nn.ModuleList(Layer(d) for _ in range(n))
        self.out = nn.Linear(d, 6)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def logs(steps):
    """Wells get a little longer every fourth step."""
    for s in range(steps):
        n = 120 + s // 4
        x = torch.randn(16, n, 96)
        if "1" in FIX:
            x = nn.functional.pad(x, (0, 0, 0, 132 - n))
        yield x


def reduce_grads(params):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for p, g in zip(params, flat.split([p.numel() for p in params]), strict=False):
        p.grad = g.view_as(p)


dist.init_process_group("gloo")
torch.manual_seed(1)
tagger = Tagger()
fast = torch.compile(tagger, backend="eager", dynamic=False)
params = list(tagger.parameters())
opt = torch.optim.SGD(params, lr=0.01)
for n in (100, 132):
    fast(torch.randn(16, n, 96)).mean().backward()
dist.barrier()
t0 = time.perf_counter()
for x in logs(STEPS):
    opt.zero_grad()
    fast(x).square().mean().backward()
    reduce_grads(params)
    opt.step()
if dist.get_rank() == 0:
    print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
dist.barrier()
dist.destroy_process_group()
