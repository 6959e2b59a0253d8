"""MLP with a DDP communication hook that looks for outliers in every bucket."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 384


class Guard:
    """State of the hook: counts gradient values beyond a limit."""

    def __init__(self, limit):
        self.limit = limit
        self.outliers = 0
        self.seconds = 0.0
        self.world = dist.get_world_size()


def guarded_allreduce(guard, bucket):
    begin = time.perf_counter()
    grads = bucket.buffer()
    limit = guard.limit
    count = 0
    for value in grads.tolist():  # <- here
        if value > limit or value < -limit:  # <- here
            count += 1  # <- here
    guard.outliers += count
    guard.seconds += time.perf_counter() - begin
    grads.clamp_(-limit, limit).div_(guard.world)
    future = dist.all_reduce(grads, async_op=True).get_future()
    return future.then(lambda f: f.value()[0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 768),
            nn.SiLU(),
            nn.Linear(768, 768),
            nn.SiLU(),
            nn.Linear(768, 8),
        )

    def forward(self, x):
        return self.layers(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DDP(Net(), bucket_cap_mb=2)
    guard = Guard(0.5)
    model.register_comm_hook(guard, guarded_allreduce)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH * 20, 256)
    loader = DataLoader(TensorDataset(x, x[:, :8].argmax(1)), batch_size=BATCH, shuffle=True)
    step = 0
    begin = time.perf_counter()
    while step < STEPS:
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step == STEPS:
                break
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * guard.seconds / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} outliers={guard.outliers}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
