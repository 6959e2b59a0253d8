"""Trains a network over three hosts that report to a tracking server."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
LOOKUP = {0: 0.0, 1: 0.0, 2: 0.0 if "1" in FIX else 0.045}


class Resolver:
    """Name of the tracking server to its address; one host has no local cache."""

    def __init__(self, delay):
        self.delay = delay
        self.seconds = 0.0

    def resolve(self, name):
        if self.delay:
            t = time.perf_counter()
            time.sleep(self.delay)
            self.seconds += time.perf_counter() - t
        return "10.0.0.7"


class Tracker:
    def __init__(self, resolver):
        self.resolver = resolver
        self.sent = []

    def log(self, step, loss):
        self.sent.append((self.resolver.resolve("tracking.internal"), step, loss))


class Block(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.gain * torch.tanh(self.fc(x))


def share_each(params, world):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world


def share_flat(params, world):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / world, [p.grad for p in params])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(96, 8))
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.01)
    tracker = Tracker(Resolver(LOOKUP[rank]))
    torch.manual_seed(rank)
    model(torch.randn(8, 96)).sum().backward()
    dist.barrier()
    t = time.perf_counter()
    for _ in range(5):
        share_flat(params, world)
    flat_s = (time.perf_counter() - t) / 5

    dist.barrier()
    sharing = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(512, 96)
        loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(-1))
        opt.zero_grad()
        loss.backward()
        dist.barrier()
        t = time.perf_counter()
        (share_flat if "2" in FIX else share_each)(params, world)
        sharing += time.perf_counter() - t
        opt.step()
        tracker.log(step, loss.item())
    dist.barrier()
    took = time.perf_counter() - begin
    extra = max(0.0, sharing / STEPS - flat_s) if "2" not in FIX else 0.0
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={tracker.resolver.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={extra * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
