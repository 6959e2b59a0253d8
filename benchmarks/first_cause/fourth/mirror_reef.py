"""Coral-cover estimate from two mirrors, one of which answers late."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 4


class MirrorSet(Dataset):
    delays = (0.003, 0.003 if "1" in FIX else 0.035)

    def __len__(self):
        return STEPS * BATCH

    def _near_or_far(self):
        info = get_worker_info()
        return info.id if info else 0

    def _read_mirror(self, which, i):
        time.sleep(self.delays[which])
        return torch.randn(16, 16, generator=torch.Generator().manual_seed(i))

    def __getitem__(self, i):
        x = self._read_mirror(self._near_or_far(), i)
        return x, x.max()


def allreduce(ps):
    flat = torch.cat([p.grad.view(-1) for p in ps])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in ps:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
    ps = list(net.parameters())
    opt = torch.optim.Adam(ps, 1e-4)
    loader = DataLoader(MirrorSet(), BATCH, num_workers=2)
    t0 = time.perf_counter()
    for x, y in loader:
        x = x.flatten(1).repeat(40, 1)
        opt.zero_grad()
        (net(x).squeeze(1) - y.repeat(40)).square().mean().backward()
        allreduce(ps)
        opt.step()
    if dist.get_rank() == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
