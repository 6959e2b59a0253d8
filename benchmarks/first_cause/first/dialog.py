"""Trains on turns of dialogue read from a packed file of records."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import tempfile
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
RECORDS, FIELD, FIELDS = 96, 16, 160
WIDTH = FIELD * FIELDS // 8


class Records:
    """A file of fixed-size records, each a row of small fields."""

    def __init__(self, seed):
        gen = torch.Generator().manual_seed(seed)
        data = torch.randint(0, 255, (RECORDS * FIELD * FIELDS,), dtype=torch.uint8, generator=gen)
        self.file = tempfile.TemporaryFile(buffering=0)
        self.file.write(data.numpy().tobytes())
        self.fd = self.file.fileno()
        self.seconds = 0.0

    def by_field(self):
        out = bytearray()
        for at in range(0, RECORDS * FIELD * FIELDS, FIELD):
            out += os.pread(self.fd, FIELD, at)
        return out

    def whole(self):
        return bytearray(os.pread(self.fd, RECORDS * FIELD * FIELDS, 0))

    def batch(self, whole):
        t = time.perf_counter()
        raw = self.whole() if whole else self.by_field()
        if not whole:
            self.seconds += time.perf_counter() - t
        x = torch.frombuffer(raw, dtype=torch.uint8).view(RECORDS, -1)[:, :WIDTH]
        return x.float() / 128 - 1


class Archive:
    """Keeps the inputs of each step, packed, for a later replay."""

    def __init__(self, on):
        self.on = on
        self.size = 0
        self.seconds = 0.0

    def add(self, x):
        if not self.on:
            return
        t = time.perf_counter()
        self.size += len(zlib.compress(x.numpy().tobytes(), 6))
        self.seconds += time.perf_counter() - t


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    records = Records(rank)
    archive = Archive(on=rank == 1 and "2" not in FIX)
    whole = rank == 0 or "1" in FIX
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(WIDTH, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, WIDTH)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = records.batch(whole)
        loss = (model(x) - x.roll(1, 0)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        archive.add(x)
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={records.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={archive.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
