"""Trains on rows from a loader worker, cleaned up in the main process."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
ROWS = 64
READ_S = 0.001 if "1" in FIX else 0.06


class Blocks(Dataset):
    """One item is a block of rows, read from the volume at once."""

    def __len__(self):
        return STEPS + 1

    def __getitem__(self, i):
        time.sleep(READ_S)
        gen = torch.Generator().manual_seed(i)
        return torch.randn(ROWS, 320, generator=gen)


class Cleaner:
    """Cuts outliers of each row, value by value."""

    def __init__(self, on):
        self.on = on
        self.seconds = 0.0

    def row(self, values):
        out = []
        low, high = -2.5, 2.5
        for v in values:
            out.append(low if v < low else high if v > high else v)
        return out

    def __call__(self, x):
        if not self.on:
            return x.clamp(-2.5, 2.5)
        t = time.perf_counter()
        rows = []
        for _ in range(30):
            rows = []
            for values in x.tolist():
                rows.append(self.row(values))
        x = torch.tensor(rows)
        self.seconds += time.perf_counter() - t
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(320, 512)
        self.b = nn.Linear(512, 512)
        self.c = nn.Linear(512, 320)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(Blocks(), batch_size=None, num_workers=1, prefetch_factor=2)
    cleaner = Cleaner(on="2" not in FIX)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(loader)
    next(batches)

    dist.barrier()
    waited = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        t = time.perf_counter()
        x = next(batches)
        waited += time.perf_counter() - t
        x = cleaner(x)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    read = READ_S if "1" not in FIX else 0.0
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={read * 1e3:.1f} "
        f"planted2_ms={cleaner.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
