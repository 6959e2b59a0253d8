"""Short-range weather net on a grid, with restart files."""

# SPDX-License-Identifier: Apache-2.0
import collections
import gzip
import io
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class Restart:
    def __init__(self, every):
        self.every, self.dir = every, tempfile.mkdtemp(prefix="restart_")

    def save(self, step, model, opt):
        buf = io.BytesIO()
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, buf)
        path = os.path.join(self.dir, f"{step:06d}.pt.gz")
        with open(path, "wb") as f:
            f.write(buf.getvalue() if "1" in FIX else gzip.compress(buf.getvalue(), 9))
            f.flush()
            if "1" not in FIX:
                os.fsync(f.fileno())

    def due(self, step):
        return step % self.every == self.every - 1


class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 24, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(24, 4, 3, padding=1),
        )
        self.bias_map = nn.Parameter(torch.randn(4, 240, 240) * 1e-3)

    def forward(self, x):
        return x + self.net(x) + self.bias_map[:, : x.shape[2], : x.shape[3]]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Grid()
    ddp = DDP(model)
    opt = torch.optim.Adam(ddp.parameters(), 1e-3)
    restart = Restart(every=10)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x = torch.randn(2, 4, 48, 48)
        (ddp(x) - x.roll(1, 3)).abs().mean().backward()
        opt.step()
        opt.zero_grad()
        if restart.due(step):
            c = time.perf_counter()
            if rank == 0:
                restart.save(step, model, opt)
            spent["save"] += time.perf_counter() - c
            dist.barrier()
        times.append(time.perf_counter() - t0)
    finish(times)


def finish(times):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(spent))
    if dist.get_rank() == 0:
        kept = times[5:]
        keys = sorted({k for e in everyone for k in e})
        body = {
            "step_ms": round(1e3 * sum(kept) / len(kept), 2),
            "per_step_ms": {k: [round(1e3 * e.get(k, 0.0) / len(times), 2) for e in everyone] for k in keys},
        }
        print("TRUTH " + json.dumps(body), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
