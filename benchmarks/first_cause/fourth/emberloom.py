"""Fabric-defect training with records fetched inline and a digesting side thread."""

# SPDX-License-Identifier: Apache-2.0
import os
import queue
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 6


class Bolts(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def fetch(self, i):
        time.sleep(0.003)
        return torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(i))

    def __getitem__(self, i):
        return self.fetch(i), i % 3


class Digest:
    """Side thread that folds loss values into a digest nobody waits for."""

    def __init__(self):
        self.inbox = queue.Queue()
        self.state = 1
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while (item := self.inbox.get()) is not None:
            self.fold(item)

    def fold(self, item):
        s = self.state
        for k in range(100_000):
            s = (s * 31 + k ^ int(item)) % 1_000_003
        self.state = s

    def close(self):
        self.inbox.put(None)
        self.thread.join()


class Weave(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 24, 3, padding=1),
            nn.ReLU(),
        )
        self.cls = nn.Linear(24, 3)

    def forward(self, x):
        return self.cls(self.seq(x).amax((2, 3)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(Weave())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    extra = {"num_workers": 1, "prefetch_factor": 4} if "2" in FIX else {}
    digest = Digest() if rank == 1 and "1" not in FIX else None
    t0 = time.perf_counter()
    for x, y in DataLoader(Bolts(), BATCH, **extra):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        if digest:
            digest.inbox.put(loss.item() * 100)
    dist.barrier()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    if digest:
        digest.close()
    dist.barrier()
    dist.destroy_process_group()
