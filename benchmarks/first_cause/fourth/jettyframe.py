"""Wave-height network with a custom clipping function and an external compressor."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
SHRINK = "import sys, lzma; d = sys.stdin.buffer.read(); sys.stdout.write(str(len(lzma.compress(d))))"


class RowClip(torch.autograd.Function):
    """Identity whose gradient rows are limited to unit length."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if "2" in FIX:
            return grad / grad.norm(dim=1, keepdim=True).clamp(min=1.0)
        rows = []
        for g in grad.unbind(0):
            n = g.norm().item()
            rows.append(g / n if n > 1.0 else g)
        return torch.stack(rows)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(100, 400), nn.Linear(400, 400)
        self.c = nn.Linear(400, 10)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.c(RowClip.apply(torch.tanh(self.b(h))))


def squeeze_log(lines):
    text = "\n".join(lines).encode() * 80
    return int(subprocess.run([sys.executable, "-c", SHRINK], input=text, capture_output=True).stdout)


class Loop:
    def __init__(self, rank):
        self.rank = rank
        self.net = DDP(Waves())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.lines = []

    def __iter__(self):
        for step in range(STEPS):
            x = torch.randn(1000, 100)
            self.opt.zero_grad()
            loss = self.net(x).square().mean()
            loss.backward()
            self.opt.step()
            self.lines.append(f"{step} {loss.item()}")
            yield step


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loop = Loop(dist.get_rank())
    t0 = time.perf_counter()
    for step in loop:
        if loop.rank == 1 and step % 4 == 1 and "1" not in FIX:
            squeeze_log(loop.lines)
    if loop.rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
