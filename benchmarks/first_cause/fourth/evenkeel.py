"""Hull-drag surrogate with one flat hand-written all-reduce per step."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "40"))


class FlatGrads:
    """All gradients live in one buffer; averaging is one call."""

    def __init__(self, net):
        ps = list(net.parameters())
        self.buf = torch.zeros(sum(p.numel() for p in ps))
        at = 0
        for p in ps:
            p.grad = self.buf[at : at + p.numel()].view_as(p)
            at += p.numel()

    def zero(self):
        self.buf.zero_()

    def average(self):
        dist.all_reduce(self.buf)
        self.buf /= dist.get_world_size()


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(80, 1200), nn.SiLU(), nn.Linear(1200, 1200), nn.SiLU(), nn.Linear(1200, 4))
grads = FlatGrads(net)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
t0 = time.perf_counter()
for _ in range(STEPS):
    grads.zero()
    net(torch.randn(200, 80)).square().mean().backward()
    grads.average()
    opt.step()
if dist.get_rank() == 0:
    print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
dist.barrier()
dist.destroy_process_group()
