"""Mixture of many little experts, trained with hand-written data parallelism."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))


class LittleExperts(nn.Module):
    def __init__(self, n=20, d=32):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d)) for _ in range(n))
        self.gate = nn.Linear(d, n)
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        y = sum(w[:, k : k + 1] * e(x) for k, e in enumerate(self.experts))
        return self.out(y)


def average_gradients(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if "1" in FIX:
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat /= world
        for g, f in zip(grads, _unflatten_dense_tensors(flat, grads)):
            g.copy_(f)
        return
    for g in grads:
        dist.all_reduce(g)
        g /= world


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = LittleExperts()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank() + 1)
    spans = []
    for step in range(STEPS):
        t = time.perf_counter()
        x = torch.randn(96, 32)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        average_gradients(model, dist.get_world_size())
        opt.step()
        spans.append(time.perf_counter() - t)
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f} mean step {sum(spans[2:]) / len(spans[2:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


main()
