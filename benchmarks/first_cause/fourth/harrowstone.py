"""Soil-moisture ensemble over four ranks with a mailbox on one and an audit on another."""

# SPDX-License-Identifier: Apache-2.0
import multiprocessing as mp
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


def assistant(inbox, outbox):
    for word in iter(inbox.get, None):
        time.sleep(0.016)
        outbox.put(word.upper())


class Mailbox:
    def __init__(self):
        ctx = mp.get_context("fork")
        self.a, self.b = ctx.SimpleQueue(), ctx.SimpleQueue()
        self.p = ctx.Process(target=assistant, args=(self.a, self.b), daemon=True)
        self.p.start()

    def call(self, word):
        self.a.put(word)
        return self.b.get()

    def close(self):
        self.a.put(None)
        self.p.join()


class Ledger:
    def __init__(self):
        self.sums = {}

    def audit(self, step, values):
        for i, v in enumerate(values):
            key = (step % 7, i % 1000)
            self.sums[key] = self.sums.get(key, 0.0) * 0.5 + round(v, 3)


def average(ps, world):
    flat = torch.cat([p.grad.view(-1) for p in ps])
    dist.all_reduce(flat)
    flat /= world
    i = 0
    for p in ps:
        p.grad.copy_(flat[i : i + p.numel()].view_as(p))
        i += p.numel()


def main():
    torch.set_num_threads(1)
    box = Mailbox() if os.environ["RANK"] == "2" else None
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    ps = list(net.parameters())
    opt = torch.optim.SGD(ps, lr=0.01)
    ledger = Ledger()
    noise = torch.randn(30_000).tolist()
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(256, 64)
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        average(ps, world)
        opt.step()
        if box and "1" not in FIX:
            box.call("moist")
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and "2" not in FIX:
            ledger.audit(step, noise)
    dist.barrier()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    if box:
        box.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
