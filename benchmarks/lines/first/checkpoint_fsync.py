"""Wide MLP regressor; rank 0 makes its checkpoints durable, and far too often."""

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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = int(os.environ.get("STEPS", "60"))
EVERY = 2
BATCH = 128


class Regressor(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.first = nn.Linear(128, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.last(x).squeeze(-1)


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder
        self.seconds = 0.0
        self.count = 0

    def save(self, step, model, opt):
        begin = time.perf_counter()
        path = os.path.join(self.folder, f"ckpt_{step % 4}.pt")
        state = {"step": step, "model": model.state_dict(), "opt": opt.state_dict()}
        with open(path + ".tmp", "wb") as f:
            torch.save(state, f)  # <- here
            f.flush()  # <- here
            os.fsync(f.fileno())  # <- here
        os.replace(path + ".tmp", path)
        self.seconds += time.perf_counter() - begin
        self.count += 1


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    x = torch.randn(BATCH * STEPS * world, 128)
    data = TensorDataset(x, x[:, :8].sum(1))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, world, rank))
    model = DDP(Regressor())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    folder = tempfile.mkdtemp(prefix="ckpt_", dir="/var/tmp")
    ckpt = Checkpointer(folder)
    begin = time.perf_counter()
    for step, (xb, yb) in enumerate(loader):
        loss = nn.functional.mse_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % EVERY == EVERY - 1:
            ckpt.save(step, model.module, opt)
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * ckpt.seconds / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} saves={ckpt.count}\n"
    )
    shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
