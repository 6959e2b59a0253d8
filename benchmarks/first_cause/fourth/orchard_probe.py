"""Yield forecaster; the leading rank checks its environment with a child process."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FIX = os.getenv("FIX", "")
STEPS = int(os.getenv("STEPS", 40))
CHECK = "import asyncio, email.mime.text, decimal, xml.dom.minidom; print('fine')"


def run_probe():
    done = subprocess.run([sys.executable, "-I", "-c", CHECK], capture_output=True, text=True)
    return done.stdout.strip() == "fine"


class Callback:
    def on_step(self, number):
        pass


class HealthCallback(Callback):
    def __init__(self, every):
        self.every = every
        self.healthy = True

    def on_step(self, number):
        if number % self.every == 0:
            self.healthy = run_probe() and self.healthy


class Fit:
    def __init__(self, net, callbacks):
        self.net = net
        self.callbacks = callbacks
        self.opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def go(self, steps):
        for n in range(1, steps + 1):
            x = torch.randn(64, 48, 32)
            y = x.mean(dim=(1, 2)).unsqueeze(1)
            self.opt.zero_grad()
            nn.functional.mse_loss(self.net(x), y).backward()
            self.opt.step()
            for c in self.callbacks:
                c.on_step(n)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(32, 96, batch_first=True)
        self.out = nn.Linear(96, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    calls = []
    if rank == 0 and "1" not in FIX:
        calls.append(HealthCallback(every=4))
    fit = Fit(DistributedDataParallel(Forecaster()), calls)
    t = time.perf_counter()
    fit.go(STEPS)
    if rank == 0:
        print("mean step", round((time.perf_counter() - t) / STEPS * 1000, 1), "ms")
    dist.barrier()
    dist.destroy_process_group()


main()
