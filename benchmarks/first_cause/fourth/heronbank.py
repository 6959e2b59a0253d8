"""Wetland species ranking in very short epochs with an index opened per worker."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils.data as tud

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
PER_EPOCH = 5
INDEX = None


def open_index(worker_id):
    """Sort the names once so that a look-up is quick."""
    global INDEX
    names = [f"heron-{(i * 7919) % 90001:06d}" for i in range(50_000)]
    INDEX = {n: k for k, n in enumerate(sorted(names, key=lambda s: s[::-1]))}


class Sightings(tud.Dataset):
    def __len__(self):
        return PER_EPOCH * 32

    def __getitem__(self, i):
        pos = INDEX.get(f"heron-{i:06d}", 0)
        return torch.full((128,), float(pos % 17)), pos % 5


def fit(rank, world):
    torch.manual_seed(11)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 5))
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = tud.DataLoader(
        Sightings(), batch_size=32, num_workers=1, worker_init_fn=open_index, persistent_workers="1" in FIX
    )
    t0 = time.perf_counter()
    done = 0
    while done < STEPS:
        for x, y in loader:
            x = x.repeat(8, 1) + torch.randn(256, 128)
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y.repeat(8)).backward()
            opt.step()
            done += 1
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / done * 1e3:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    fit(dist.get_rank(), dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()
