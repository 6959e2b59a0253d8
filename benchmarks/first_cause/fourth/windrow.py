"""Crop-row segmenter with a chatty telemetry thread on the first rank."""

# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Telemetry(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.mark = ""

    def run(self):
        while not self.over.wait(0.05):
            self.mark = self.grind()

    def grind(self):
        acc = 17
        for i in range(350_000):
            acc = (acc * 1103515245 + i) & 0x7FFFFFFF
        return hashlib.sha1(str(acc).encode()).hexdigest()


class RowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 24, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(4))
        self.out = nn.Conv2d(24, 2, 1)

    def forward(self, x):
        x = F.relu(self.down(x))
        for m in self.mid:
            x = x + F.relu(m(x))
        return self.out(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(RowNet())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    tele = None
    if rank == 0 and "1" not in FIX:
        tele = Telemetry()
        tele.start()
    t0 = time.perf_counter()
    for _ in range(STEPS):
        x = torch.randn(6, 3, 40, 40)
        y = (x.sum(1) > 0).long()
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    dist.barrier()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    if tele:
        tele.over.set()
        tele.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
