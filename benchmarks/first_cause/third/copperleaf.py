"""copperleaf: orthogonal recurrent network for the copy task."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
SYMBOLS = 10


class OrthoCell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inward = nn.Linear(width, width)
        self.recur = orthogonal(nn.Linear(width, width, bias=False))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x, h):
        z = self.inward(x) + self.recur(h)
        return torch.sign(z) * torch.relu(z.abs() + self.bias)


class CopyNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(SYMBOLS, width)
        self.cell = OrthoCell(width)
        self.out = nn.Sequential(nn.Linear(width, 8 * width), nn.ReLU(), nn.Linear(8 * width, SYMBOLS))

    def forward(self, tokens):
        h = torch.zeros(tokens.shape[0], self.width)
        outputs = []
        with parametrize.cached() if "1" in FIX else contextlib.nullcontext():
            for x in self.embed(tokens).unbind(1):
                h = self.cell(x, h)
                outputs.append(self.out(h))
        return torch.stack(outputs, 1)


def copy_task(generator, batch=320, length=12):
    data = torch.randint(1, SYMBOLS - 1, (batch, length // 2), generator=generator)
    blank = torch.zeros(batch, length // 2, dtype=torch.long)
    return torch.cat([data, blank], 1), torch.cat([blank, data], 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = DistributedDataParallel(CopyNet())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    ticks = []
    for _step in range(STEPS):
        tokens, target = copy_task(generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"copperleaf: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
