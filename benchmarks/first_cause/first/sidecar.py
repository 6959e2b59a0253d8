"""Trains a classifier while a helper process packs the run's artifacts."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
PACK = """
import os, time, zlib
blob = os.urandom(1 << 18) + bytes(1 << 19)
parent = os.getppid()
while os.getppid() == parent:
    zlib.compress(blob, 9)
"""


class Net(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.out = nn.Linear(width, 20)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


def waited_for_cpu():
    """Seconds the main thread was runnable but had no core."""
    with open("/proc/thread-self/schedstat") as f:
        return int(f.read().split()[1]) / 1e9


def start_packer():
    return subprocess.Popen([sys.executable, "-c", PACK])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    packers = []
    if rank == 0 and "1" not in FIX:
        packers = [start_packer() for _ in range(2)]
    time.sleep(0.3)

    dist.barrier()
    queued = waited_for_cpu()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(192, 512)
        y = x[:, :20].argmax(-1)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    queued = waited_for_cpu() - queued
    for p in packers:
        p.kill()
        p.wait()
    extra = queued if "1" not in FIX else 0.0
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={extra / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
