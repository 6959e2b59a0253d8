"""cedarline: wide regression network with sparsified gradients."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")


class Sparsifier:
    def __init__(self, ratio=0.05):
        self.ratio = ratio
        self.residual = {}

    def threshold(self, flat):
        keep = max(1, int(self.ratio * flat.numel()))
        if "1" in FIX:
            sample = flat[::97].abs()
            return sample.kthvalue(max(1, int((1 - self.ratio) * sample.numel()))).values
        ordered, _ = flat.abs().sort(descending=True)
        return ordered[keep - 1]

    def compress(self, index, flat):
        key = index, flat.numel()
        if key in self.residual:
            flat = flat + self.residual[key]
        sent = torch.where(flat.abs() >= self.threshold(flat), flat, torch.zeros(()))
        self.residual[key] = flat - sent
        return sent


def sparse_hook(state, bucket):
    sent = state.compress(bucket.index(), bucket.buffer())
    work = dist.all_reduce(sent, async_op=True).get_future()
    return work.then(lambda done: done.value()[0] / dist.get_world_size())


class Wide(nn.Module):
    def __init__(self, inputs=128, width=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Problem:
    def __init__(self, seed, inputs=128):
        self.g = torch.Generator().manual_seed(seed)
        self.w = torch.randn(inputs, generator=torch.Generator().manual_seed(0))

    def batch(self, rows=1024):
        x = torch.randn(rows, len(self.w), generator=self.g)
        return x, torch.sin(x @ self.w)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DistributedDataParallel(Wide(), bucket_cap_mb=2)
    model.register_comm_hook(Sparsifier(), sparse_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    problem = Problem(rank)
    ticks = []
    for _step in range(STEPS):
        x, y = problem.batch()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"cedarline: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
