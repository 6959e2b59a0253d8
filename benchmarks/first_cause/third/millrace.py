"""millrace: turbine efficiency ensembles, many small networks trained together."""

# SPDX-License-Identifier: Apache-2.0
import math
import multiprocessing
import os
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
MEMBERS = 8


class Member(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(10, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.net(x)


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(Member() for _ in range(MEMBERS))

    def forward(self, x):
        return torch.stack([m(x) for m in self.members])


def crps(pair):
    mean, scale = pair
    total = 0.0
    for k in range(150):
        z = (k / 75 - 1 - mean) / (abs(scale) + 1e-3)
        total += (0.5 * (1 + math.erf(z / math.sqrt(2))) - (k > 75)) ** 2
    return total / 150


class Scoring:
    def __init__(self):
        self.history = []

    def score(self, predictions):
        pairs = [tuple(p) for p in predictions.mean(0).tolist()][:64]
        if "1" in FIX:
            values = [crps(p) for p in pairs]
        else:
            values = self.in_parallel(pairs)
        self.history.append(sum(values) / len(values))

    def in_parallel(self, pairs):
        with multiprocessing.get_context("fork").Pool(4) as pool:
            return pool.map(crps, pairs, chunksize=16)


class GradientMean:
    def __init__(self, model):
        self.params = list(model.parameters())

    def __call__(self):
        if "2" in FIX:
            flat = torch._utils._flatten_dense_tensors([p.grad for p in self.params])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for p, g in zip(
                self.params, torch._utils._unflatten_dense_tensors(flat, [p.grad for p in self.params]), strict=False
            ):
                p.grad.copy_(g)
            return
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Ensemble()
    average = GradientMean(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scoring = Scoring()
    g = torch.Generator().manual_seed(rank)
    ticks = []
    for step in range(STEPS):
        x = torch.randn(2500, 10, generator=g)
        y = torch.stack([x.sin().sum(1), x.cos().mean(1)], 1)
        predictions = model(x)
        loss = nn.functional.mse_loss(predictions, y.expand_as(predictions))
        optimizer.zero_grad()
        loss.backward()
        average()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            scoring.score(predictions.detach())
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"millrace: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
