"""Flowering-date model: accumulation without needless syncs, a cheap average copy, a schedule."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))
ACC = 3


class Trainer:
    def __init__(self):
        self.net = DDP(nn.Sequential(nn.Linear(128, 640), nn.ELU(), nn.Linear(640, 640), nn.ELU(), nn.Linear(640, 1)))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, total_iters=STEPS)
        self.mean = [p.detach().clone() for p in self.net.parameters()]

    def micro(self, sync):
        with contextlib.nullcontext() if sync else self.net.no_sync():
            (self.net(torch.randn(128, 128)).square().mean() / ACC).backward()

    def step(self):
        self.opt.zero_grad()
        for k in range(ACC):
            self.micro(sync=k == ACC - 1)
        self.opt.step()
        self.sched.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, list(self.net.parameters()), 0.01)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tr = Trainer()
    t0 = time.perf_counter()
    for _ in range(STEPS):
        tr.step()
    if dist.get_rank() == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()
