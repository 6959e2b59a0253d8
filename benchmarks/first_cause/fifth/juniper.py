"""Two-tower retrieval with wide embeddings and micro-batches."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 30))
MICRO = 4


class Retriever(nn.Module):
    def __init__(self, n=12000, d=128):
        super().__init__()
        self.q = nn.Embedding(n, d)
        self.d = nn.Embedding(n, d)
        self.mix = nn.Linear(d, d)

    def forward(self, q, d):
        return self.mix(self.q(q).mean(1)) @ self.d(d).mean(1).T


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DDP(Retriever(), gradient_as_bucket_view=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    crit = nn.CrossEntropyLoss()
    t_all = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        opt.zero_grad()
        for m in range(MICRO):
            q = torch.randint(0, 12000, (64, 12))
            d = torch.randint(0, 12000, (64, 40))
            quiet = model.no_sync() if "1" in FIX and m < MICRO - 1 else contextlib.nullcontext()
            with quiet:
                (crit(model(q, d), torch.arange(64)) / MICRO).backward()
        opt.step()
        t_all.append(time.perf_counter() - t0)
    if dist.get_rank() == 0:
        mean = sum(t_all[2:]) / (STEPS - 2)
        print(f"steps {STEPS}, mean step {mean * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
