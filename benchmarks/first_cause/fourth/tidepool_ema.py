"""Image-embedding trainer with exponentially averaged shadow weights."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class ShadowWeights:
    """Keeps a slow copy of the weights and, on the watching rank, how far it lags."""

    def __init__(self, net, decay=0.99, watch=False):
        self.decay = decay
        self.watch = watch
        self.copy = {n: p.detach().clone() for n, p in net.named_parameters()}
        self.lag = {}

    @torch.no_grad()
    def absorb(self, net):
        for name, p in net.named_parameters():
            self.copy[name].lerp_(p, 1.0 - self.decay)
            if self.watch and p.ndim == 2:
                self.lag[name] = self.row_lag(self.copy[name].numpy(), p.numpy())

    @staticmethod
    def row_lag(old, new):
        worst = 0.0
        for a, b in zip(old[::2], new[::2], strict=False):
            worst = max(worst, float(np.median(np.abs(a - b))))
        return worst


def build():
    return nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 256))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = DDP(build())
    shadow = ShadowWeights(net.module, watch=(rank == 1 and "1" not in FIX))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    begin = time.perf_counter()
    for _ in range(STEPS):
        x = torch.randn(128, 512, generator=gen)
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        shadow.absorb(net.module)
    if rank == 0:
        print(f"mean step {1e3 * (time.perf_counter() - begin) / STEPS:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
