"""A value learner fed by a collector thread through a small replay store."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import threading
import time
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))


class ReplayStore:
    """The learner asks for fresh transitions, the collector brings them."""

    def __init__(self, capacity):
        self._items = deque(maxlen=capacity)
        self._cond = threading.Condition()
        self._wanted = 0
        self.waited = 0.0

    def put(self, item):
        with self._cond:
            self._items.append(item)
            self._wanted -= 1
            self._cond.notify_all()

    def demand(self):
        with self._cond:
            self._cond.wait_for(lambda: self._wanted > 0)
            return self._wanted

    def refill(self, n):
        with self._cond:
            self._wanted = n
            self._cond.notify_all()
            t0 = time.perf_counter()
            self._cond.wait_for(lambda: self._wanted <= 0)  # <- here
            self.waited += time.perf_counter() - t0

    def recent(self, n):
        with self._cond:
            self._cond.wait_for(lambda: len(self._items) >= 1)
            picks = [self._items[-1 - i % len(self._items)] for i in range(n)]
        return [torch.stack(column) for column in zip(*picks)]


class Collector(threading.Thread):
    def __init__(self, store, tick, seed):
        super().__init__(name="collector", daemon=True)
        self.store, self.tick = store, tick
        self.gen = torch.Generator().manual_seed(seed)

    def run(self):
        state = torch.zeros(8)
        while True:
            for _ in range(self.store.demand()):
                time.sleep(self.tick)
                after = 0.9 * state + torch.randn(8, generator=self.gen)
                self.store.put((state, after, after.abs().sum().neg()))
                state = after


class ValueNet(nn.Module):
    def __init__(self, width=704):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, s):
        return self.body(s).squeeze(1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    store = ReplayStore(4096)
    live = rank == 1  # rank 0 learns from the recording only
    if live:
        Collector(store, tick=0.011, seed=9).start()
        store.refill(4)
        store.waited = 0.0
    else:
        for _ in range(64):
            store.put((torch.randn(8), torch.randn(8), torch.randn(())))
    model = nn.parallel.DistributedDataParallel(ValueNet())
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        if live:
            store.refill(4)  # <- also
        state, after, reward = store.recent(256)
        with torch.no_grad():
            target = reward + 0.95 * model.module(after)
        loss = nn.functional.smooth_l1_loss(model(state), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * store.waited / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
