"""Trains a frame predictor from packed audio and tracks weight statistics."""

# SPDX-License-Identifier: Apache-2.0
import lzma
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
ROWS, FRAME = 128, 256


class Packed:
    """Audio blocks; those of rank 0 come packed."""

    def __init__(self, packed):
        audio = (torch.randn(8 * ROWS, FRAME) * 400).short()
        self.raw = audio.numpy().tobytes()
        self.packed = lzma.compress(self.raw, preset=0) if packed else None
        self.seconds = 0.0

    def block(self):
        raw = self.raw
        if self.packed:
            t = time.perf_counter()
            raw = lzma.decompress(self.packed)
            self.seconds += time.perf_counter() - t
        x = torch.frombuffer(bytearray(raw[: 2 * ROWS * FRAME]), dtype=torch.int16)
        return x.view(ROWS, FRAME).float() / 1000


class WeightTrack:
    """Median size of the weights of each layer, kept for a chart."""

    def __init__(self, model, on):
        self.model, self.on = model, on
        self.rows = []
        self.seconds = 0.0

    def update(self):
        if not self.on:
            return
        t = time.perf_counter()
        for p in self.model.parameters():
            values = p.detach().flatten()[::9].tolist()
            values.sort()
            self.rows.append(values[len(values) // 2])
        self.seconds += time.perf_counter() - t


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(FRAME, 512)
        self.b = nn.Linear(512, 512)
        self.c = nn.Linear(512, FRAME)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Packed(packed=rank == 0 and "1" not in FIX)
    torch.manual_seed(0)
    model = DDP(Net())
    track = WeightTrack(model, on=rank == 1 and "2" not in FIX)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = data.block()
        loss = (model(x) - x.roll(-1, 0)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        track.update()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={data.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={track.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
