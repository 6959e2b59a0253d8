"""Trains on leased work items; the lease service is a small in-process stand-in."""

# SPDX-License-Identifier: Apache-2.0
import functools
import logging
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
log = logging.getLogger("lease")
TIMES = {}


class Busy(RuntimeError):
    pass


def retrying(attempts, first, factor=2.0):
    def decorate(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            delay = first
            for attempt in range(attempts):
                try:
                    return fn(*args, **kwargs)
                except Busy as exc:
                    log.debug("%s attempt %d: %s", fn.__name__, attempt, exc)
                    t0 = time.perf_counter()
                    time.sleep(delay)  # <- here
                    TIMES[fn.__name__] = TIMES.get(fn.__name__, 0.0) + time.perf_counter() - t0
                    delay *= factor
            raise TimeoutError(fn.__name__)

        return call

    return decorate


def logged(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        time.sleep(0)
        log.debug("%s%r", fn.__name__, args[1:])
        return fn(*args, **kwargs)  # <- also

    return call


class LeaseBoard:
    """Hands out seeds; a contended board refuses the first asks for each item."""

    def __init__(self, contended):
        self.refusals = 2 if contended else 0
        self.asked = {}

    @logged
    @retrying(attempts=5, first=0.013)
    def acquire(self, item):
        n = self.asked[item] = self.asked.get(item, 0) + 1
        if n <= self.refusals:
            raise Busy(f"item {item} is leased elsewhere")
        return 7919 * item

    @logged
    @retrying(attempts=5, first=0.013)
    def release(self, item):
        self.asked.pop(item)


class Regressor(nn.Module):
    def __init__(self, width=640):
        super().__init__()
        self.inp = nn.Linear(64, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for layer in self.mid:
            h = h + torch.relu(layer(h))
        return self.out(h).squeeze(-1)


def train_on(model, opt, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(320, 64, generator=gen)
    loss = nn.functional.mse_loss(model(x), x.square().mean(dim=1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Regressor())
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    board = LeaseBoard(contended=(rank == 1))
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        item = step * world + rank
        seed = board.acquire(item)  # <- also
        loss = train_on(model, opt, seed)
        board.release(item)
    wall = time.perf_counter() - t0
    if rank == 0:
        print("loss", loss)
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * TIMES.get('acquire', 0.0) / STEPS:.1f} "
        f"step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
