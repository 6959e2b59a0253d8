"""Trains a regressor and gathers per-sample statistics over the ranks."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 128


class Regressor(nn.Module):
    def __init__(self, width=640):
        super().__init__()
        self.a = nn.Linear(128, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))).squeeze(-1)


class Meter:
    """Keeps what each sample did in the last step."""

    def __init__(self):
        self.mean = 0.0
        self.seconds = 0.0

    def record(self, step, errors):
        return {
            f"{step}/{i}/{kind}": {"error": e, "kind": kind, "step": step}
            for kind in ("abs", "sq", "rel", "log", "sign", "cut")
            for i, e in enumerate(errors)
        }

    def gather(self, rows):
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, rows)
        return everyone

    def update(self, step, errors):
        t = time.perf_counter()
        rows = self.record(step, errors.tolist())
        total = count = 0
        for part in self.gather(rows):
            total += sum(row["error"] for row in part.values())
            count += len(part)
        self.mean = total / count
        self.seconds += time.perf_counter() - t


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Regressor())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = Meter()
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(BATCH, 128)
        y = x.square().mean(-1)
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if "1" not in FIX:
            meter.update(step, (out - y).detach().abs())
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={meter.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
