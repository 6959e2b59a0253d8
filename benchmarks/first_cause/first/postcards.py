"""Trains on pictures decoded by loader workers."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "40"))
BATCH, PIXELS = 96, 768


class Pictures(Dataset):
    """Packed pictures; an item is unpacked when asked for."""

    def __init__(self, count):
        self.count = count
        self.packed = []
        for i in range(64):
            gen = torch.Generator().manual_seed(i)
            raw = torch.randint(0, 40, (PIXELS,), dtype=torch.uint8, generator=gen)
            self.packed.append(zlib.compress(raw.numpy().tobytes(), 1))

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        raw = bytearray(zlib.decompress(self.packed[i % 64]))
        return torch.frombuffer(raw, dtype=torch.uint8).float() / 40, i % 10


def limit_threads(worker_id):
    torch.set_num_threads(1)


def network():
    return nn.Sequential(
        nn.Linear(PIXELS, 768),
        nn.ReLU(),
        nn.Linear(768, 768),
        nn.ReLU(),
        nn.Linear(768, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(
        Pictures((STEPS + 1) * BATCH), batch_size=BATCH, num_workers=1, prefetch_factor=4, worker_init_fn=limit_threads
    )
    model = DDP(network())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = iter(loader)
    next(batches)

    dist.barrier()
    begin = time.perf_counter()
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
