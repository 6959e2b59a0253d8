"""cinderpath: very wide, short network on tabular physics data."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.sigmoid(self.gate(h)) * self.value(h)


class WideNet(nn.Module):
    def __init__(self, inputs=28, width=768):
        super().__init__()
        self.lift = nn.Linear(inputs, width)
        self.mix = nn.Sequential(Mixer(width), Mixer(width))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.mix(self.lift(x))).squeeze(-1)


class Events:
    def __init__(self, seed, inputs=28):
        self.g = torch.Generator().manual_seed(seed)
        self.inputs = inputs

    def batch(self, rows=64):
        label = torch.randint(0, 2, (rows,), generator=self.g).float()
        x = torch.randn(rows, self.inputs, generator=self.g) + 0.3 * label[:, None]
        return x, label


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(WideNet(), bucket_cap_mb=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    events = Events(rank)
    loss_fn = nn.BCEWithLogitsLoss()
    ticks = []
    for _step in range(STEPS):
        x, label = events.batch()
        loss = loss_fn(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"cinderpath: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
