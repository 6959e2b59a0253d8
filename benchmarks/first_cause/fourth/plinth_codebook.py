"""Statue-scan quantiser with a large fixed codebook registered as a buffer."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Quantiser(nn.Module):
    def __init__(self, codes=150_000, d=96):
        super().__init__()
        self.register_buffer("codebook", torch.randn(codes, d))
        self.enc = nn.Sequential(nn.Linear(d, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, d))

    def forward(self, x, near):
        z = self.enc(x)
        return (z - self.codebook[near]).square().mean()


def step(net, opt):
    x = torch.randn(384, 96)
    near = torch.randint(0, 150_000, (384,))
    opt.zero_grad(set_to_none=True)
    loss = net(x, near)
    loss.backward()
    opt.step()
    return loss.detach()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    net = DDP(Quantiser(), broadcast_buffers="1" not in FIX)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    t0 = time.perf_counter()
    history = [step(net, opt) for _ in range(STEPS)]
    if dist.get_rank() == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()
