"""Click model on synthetic features. Rank 1 keeps a value histogram of its inputs."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = int(os.environ.get("STEPS", "70"))
BATCH = 256
WIDTH = 256


def build_model():
    return nn.Sequential(
        nn.Linear(WIDTH, 768),
        nn.ReLU(),
        nn.Linear(768, 768),
        nn.ReLU(),
        nn.Linear(768, 2),
    )


def train(rank, world):
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(BATCH * 12 * world, WIDTH), torch.randint(0, 2, (BATCH * 12 * world,)))
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(build_model())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_fn = nn.CrossEntropyLoss()
    step, epoch, spent = 0, 0, 0.0
    begin = time.perf_counter()
    while step < STEPS:
        sampler.set_epoch(epoch)
        epoch += 1
        for x, y in loader:
            if step == STEPS:
                break
            if rank == 1:
                t0 = time.perf_counter()
                seen = {}
                for row in x.tolist():  # <- here
                    for value in row:  # <- here
                        key = f"{value:.1f}"  # <- here
                        seen[key] = seen.get(key, 0) + 1  # <- here
                spent += time.perf_counter() - t0
            loss = loss_fn(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
