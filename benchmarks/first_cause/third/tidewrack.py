"""tidewrack: sea-surface temperature forecaster with hand-rolled data parallelism."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")


class HostProbe:
    def __init__(self):
        self.history = []

    def sample(self):
        if "1" in FIX:
            with open("/proc/self/statm") as f:
                rss = int(f.read().split()[1]) * 4
        else:
            rss = 0
            for parent in (os.getppid(), os.getpid()):
                command = ["ps", "-L", "-o", "pid,lwp,pcpu,rss,comm", "-p", str(parent), "--ppid", str(parent)]
                text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                rows = [line.split(None, 4) for line in text.splitlines()[1:]]
                rss += sum(int(r[3]) for r in rows if r[0] == r[1])
        self.history.append(rss)
        return rss


class Forecaster(nn.Module):
    def __init__(self, channels=28):
        super().__init__()
        self.enc = nn.Conv2d(5, channels, 5, padding=2)
        self.body = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3))
        self.dec = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        h = torch.relu(self.enc(x))
        for layer in self.body:
            h = h + torch.relu(layer(h))
        return self.dec(h)


class FlatSync:
    def __init__(self, model):
        self.params = list(model.parameters())

    def __call__(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.params:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()


def fields(generator):
    while True:
        x = torch.randn(4, 5, 40, 40, generator=generator)
        yield x, x.mean(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = Forecaster()
    sync = FlatSync(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    probe = HostProbe()
    ticks = []
    for _step, (x, y) in zip(range(STEPS), fields(torch.Generator().manual_seed(rank)), strict=False):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        sync()
        optimizer.step()
        if rank == 0:
            probe.sample()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"peak {max(probe.history)} kB")
        print(f"tidewrack: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
