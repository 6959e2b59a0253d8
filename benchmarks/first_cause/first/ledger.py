"""Trains on ledger rows, saves every rank's part and tracks sample losses."""

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
SAVE_EVERY, BATCH = 8, 160


class Saver:
    """Packs the state of this rank into a folder of its own."""

    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.folder = tempfile.mkdtemp(prefix="ledger-")
        self.seconds = 0.0

    def save(self, step):
        t = time.perf_counter()
        state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": step}
        for copy in range(8):
            torch.save(state, os.path.join(self.folder, f"part{copy}.pt"))
        self.seconds += time.perf_counter() - t


class SampleLosses:
    """Exponential mean of the loss of each sample."""

    def __init__(self):
        self.mean = {}
        self.seconds = 0.0

    def update(self, ids, losses):
        t = time.perf_counter()
        for i in range(len(ids)):
            key = ids[i].item()
            old = self.mean.get(key, 0.0)
            self.mean[key] = 0.9 * old + 0.1 * losses[i].item() ** 2 / (1 + losses.max().item())
        self.seconds += time.perf_counter() - t


class Net(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.a = nn.Linear(96, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, 3)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    saver, tracked = Saver(model.module, opt), SampleLosses()
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        ids = torch.randint(0, 5000, (BATCH * 6,))
        x = torch.randn(BATCH * 6, 96)[:BATCH]
        losses = nn.functional.cross_entropy(model(x), x[:, :3].argmax(-1), reduction="none")
        opt.zero_grad()
        losses.mean().backward()
        opt.step()
        if "2" not in FIX:
            tracked.update(ids, losses.detach().repeat(6))
        if step % SAVE_EVERY == 0 and "1" not in FIX:
            saver.save(step)
    dist.barrier()
    took = time.perf_counter() - begin
    shutil.rmtree(saver.folder)
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={saver.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={tracked.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
