"""mossgrid: voxel-pooled point cloud regression."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
POINTS = 6000
CELLS = 700


class CellMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cell, cells):
        index = cell[:, None].expand_as(x)
        out = x.new_full((cells, x.shape[1]), float("-inf"))
        out.scatter_reduce_(0, index, x, "amax")
        out = torch.where(torch.isinf(out), torch.zeros_like(out), out)
        ctx.save_for_backward(x, cell, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, cell, out = ctx.saved_tensors
        if "1" in FIX:
            hit = x == out[cell]
            return torch.where(hit, grad[cell], torch.zeros_like(x)), None, None
        grad_x = torch.zeros_like(x)
        order = cell.argsort()
        ends = torch.bincount(cell, minlength=len(out)).cumsum(0).tolist()
        begin = 0
        for c, end in enumerate(ends):
            rows = order[begin:end]
            if end > begin:
                grad_x[rows] = torch.where(x[rows] == out[c], grad[c], torch.zeros(()))
            begin = end
        return grad_x, None, None


class PointNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.mix = nn.Sequential(nn.Linear(width, width * 2), nn.ReLU(), nn.Linear(width * 2, width))
        self.head = nn.Linear(width, 3)

    def forward(self, points, cell):
        pooled = CellMax.apply(self.embed(points), cell, CELLS)
        return self.head(self.mix(pooled))


class Scans:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def next(self):
        n = POINTS + int(torch.randint(-600, 601, (), generator=self.g))
        points = torch.randn(n, 6, generator=self.g)
        cell = torch.randint(0, CELLS, (n,), generator=self.g)
        target = torch.randn(CELLS, 3, generator=self.g)
        return points, cell, target


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(PointNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scans = Scans(rank)
    ticks = []
    for _step in range(STEPS):
        points, cell, target = scans.next()
        loss = nn.functional.smooth_l1_loss(model(points, cell), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"mossgrid: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
