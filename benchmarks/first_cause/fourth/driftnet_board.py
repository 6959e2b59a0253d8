"""Catch classifier whose ranks swap their per-sample records every step."""

# SPDX-License-Identifier: Apache-2.0
import os
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
N = 3000


@dataclass
class MetricBoard:
    world: int
    rows: list = field(default_factory=list)

    def note(self, losses):
        self.rows = [{"item": i, "loss": v, "tag": f"haul-{i}"} for i, v in enumerate(losses)]

    def exchange(self):
        everyone = [None] * self.world
        dist.all_gather_object(everyone, self.rows)
        return sum(r["loss"] for part in everyone for r in part) / (N * self.world)

    def exchange_sum(self):
        t = torch.tensor([sum(r["loss"] for r in self.rows)])
        dist.all_reduce(t)
        return t.item() / (N * self.world)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    board = MetricBoard(world)
    share = board.exchange_sum if "1" in FIX else board.exchange
    start = time.perf_counter()
    for _step in range(STEPS):
        x, y = torch.randn(N, 64), torch.randint(0, 10, (N,))
        each = nn.functional.cross_entropy(model(x), y, reduction="none")
        opt.zero_grad(set_to_none=True)
        each.mean().backward()
        opt.step()
        board.note(each.tolist())
        share()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - start) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
