"""Trains a wide network on tabular rows and keeps checkpoints."""

# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
KEEP_EVERY = 5


class Wide(nn.Module):
    def __init__(self, columns=300, width=1280):
        super().__init__()
        self.inp = nn.Linear(columns, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        h = h + torch.relu(self.mid(h))
        return self.out(h)


class Keeper:
    """Writes the state of the run to a folder and keeps the newest only."""

    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.folder = tempfile.mkdtemp(prefix="tabular-")
        self.seconds = 0.0

    def save(self, step):
        t = time.perf_counter()
        state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": step}
        path = os.path.join(self.folder, "state.pt")
        with open(path + ".part", "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".part", path)
        self.seconds += time.perf_counter() - t

    def close(self):
        shutil.rmtree(self.folder)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Wide())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    keeper = Keeper(model.module, opt)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        x = torch.randn(192, 300)
        y = (x[:, 0] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % KEEP_EVERY == 0 and rank == 0 and "1" not in FIX:
            keeper.save(step)
    dist.barrier()
    took = time.perf_counter() - begin
    keeper.close()
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={keeper.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
