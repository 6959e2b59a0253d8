"""Learn a 2-d flow field; every rank works straight from this script's top level."""

# SPDX-License-Identifier: Apache-2.0
import functools
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
BATCH = 1024


class Fourier(nn.Module):
    """Random Fourier features of the coordinates."""

    def __init__(self, n=64):
        super().__init__()
        self.register_buffer("freq", torch.randn(2, n) * 2.0)

    def forward(self, xy):
        phase = xy @ self.freq
        return torch.cat([phase.sin(), phase.cos()], dim=1)


def flow(xy):
    x, y = xy.unbind(1)
    return torch.stack([-(3 * y).sin(), (2 * x).cos() * y], dim=1)


def read_load(path="/proc/loadavg"):
    with open(path) as f:
        return float(f.read().split()[0])


def read_memory(path="/proc/self/statm"):
    with open(path) as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def last_pid(done):
    return int(done.stdout.split()[-1]) if done.returncode == 0 else -1


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

net = nn.Sequential(
    Fourier(),
    nn.Linear(128, 384),
    nn.SiLU(),
    nn.Linear(384, 384),
    nn.SiLU(),
    nn.Linear(384, 384),
    nn.SiLU(),
    nn.Linear(384, 2),
)
model = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.99**s)
gen = torch.Generator().manual_seed(rank)

# The node's own view, sampled with its command line tool; the others read /proc.
sample_node = functools.partial(
    subprocess.run, ["sh", "-c", "sleep 0.05; cat /proc/loadavg"], capture_output=True, text=True
)
sample_load = functools.partial(read_load, "/proc/loadavg")
sample_memory = functools.partial(read_memory, "/proc/self/statm")

probe_seconds = 0.0
telemetry = []
dist.barrier()
started = time.perf_counter()
for step in range(STEPS):
    xy = torch.rand(BATCH, 2, generator=gen) * 2 - 1
    loss = nn.functional.mse_loss(model(xy), flow(xy))
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step()
    reading = {"step": step, "load": sample_load(), "rss": sample_memory()}
    if rank == 0:
        t0 = time.perf_counter()
        done = sample_node()  # <- here
        probe_seconds += time.perf_counter() - t0
        reading["last_pid"] = last_pid(done)
    telemetry.append(reading)
wall = time.perf_counter() - started

if rank == 0:
    print(f"loss {loss.item():.4f} rss {telemetry[-1]['rss']} MiB")
sys.stderr.write(
    f"TRUTH rank={rank} planted_ms_per_step={1e3 * probe_seconds / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
)
dist.destroy_process_group()
