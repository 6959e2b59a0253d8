"""Data parallel MLP whose gradients travel in half precision."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "50"))


@dataclass
class WireState:
    world: int
    clip_q: float = 0.999
    scales: list = field(default_factory=list)
    limits: list = field(default_factory=list)
    spent: float = 0.0


def rough_limit(values):
    """A limit from a thin sample, for the log only."""
    return float(np.quantile(np.abs(values[::4096]), 0.999))


def compress(bucket, state):
    grad = bucket.buffer()
    state.scales.append(float(grad.abs().max()))
    return grad.to(torch.float16)


def build_exchange(state):
    def send(_, bucket):
        half = compress(bucket, state)
        fut = dist.all_reduce(half, async_op=True).get_future()

        def unpack(done):
            grad = bucket.buffer()
            grad.copy_(done.value()[0]).div_(state.world)
            flat = grad.numpy()
            state.limits.append(rough_limit(flat))
            t0 = time.perf_counter()
            limit = np.quantile(np.abs(flat), state.clip_q)  # <- here
            state.spent += time.perf_counter() - t0
            return grad.clamp_(-float(limit), float(limit))

        return fut.then(unpack)  # <- also

    return send


def make_model():
    torch.manual_seed(3)
    layers, width = [], 832
    layers += [nn.Linear(128, width), nn.SiLU()]
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.SiLU()]
    layers += [nn.Linear(width, 16)]
    return nn.Sequential(*layers)


def batches(seed, size=128):
    gen = torch.Generator().manual_seed(seed)
    proj = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
    while True:
        x = torch.randn(size, 128, generator=gen)
        yield x, (x @ proj).argmax(dim=1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    state = WireState(world)
    model = DDP(make_model(), bucket_cap_mb=64)
    model.register_comm_hook(None, build_exchange(state))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    feed = batches(50 + rank)

    dist.barrier()
    took = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = next(feed)
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()  # <- also
        opt.step()
        took.append(time.perf_counter() - t0)
        if rank == 0 and step % 25 == 0:
            print(f"{step:4d} loss {loss.item():.4f} limit {state.limits[-1]:.2e}", flush=True)
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * state.spent / STEPS:.1f} step_ms={1e3 * sum(took) / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
