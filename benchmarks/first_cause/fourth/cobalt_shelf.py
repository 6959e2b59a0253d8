"""Pigment regressor reading its samples from a far-away shelf."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 8


class RemoteShelf(Dataset):
    """Every record costs one round trip to the shelf."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def _pull(self, key):
        time.sleep(0.0025)
        g = torch.Generator().manual_seed(key)
        return torch.randn(3, 24, 24, generator=g)

    def __getitem__(self, key):
        x = self._pull(key)
        return x, x.mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.SiLU(),
        )
        self.g = nn.Linear(32, 1)

    def forward(self, x):
        return self.g(self.f(x).mean((2, 3))).squeeze(1)


def run():
    rank = dist.get_rank()
    data = RemoteShelf(STEPS * BATCH * dist.get_world_size())
    settings = {"num_workers": 1, "prefetch_factor": 4} if "1" in FIX else {}
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data), **settings)
    net = DDP(Net())
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    t0 = time.perf_counter()
    for x, y in loader:
        opt.zero_grad()
        nn.functional.smooth_l1_loss(net(x), y).backward()
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run()
    dist.barrier()
    dist.destroy_process_group()
