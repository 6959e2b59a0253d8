"""Bird-call policy training whose keeper stores everything, replay included."""

# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Keeper:
    def __init__(self, folder, every):
        self.path = pathlib.Path(folder) / "state.pt"
        self.every = every

    def maybe(self, step, net, opt, replay):
        if step % self.every == self.every - 1:
            self.snapshot(step, net, opt, replay)

    def snapshot(self, step, net, opt, replay):
        part = self.path.with_suffix(".part")
        with open(part, "wb") as f:
            torch.save({"step": step, "net": net.state_dict(), "opt": opt.state_dict(), "replay": replay}, f)
        part.replace(self.path)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(8, 32, 9, stride=2), nn.ReLU(), nn.Conv1d(32, 64, 9, stride=2), nn.ReLU())
        self.head = nn.Linear(64, 12)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))


def sync(net, world):
    v = nn.utils.parameters_to_vector(p.grad for p in net.parameters())
    dist.all_reduce(v)
    v /= world
    i = 0
    for p in net.parameters():
        p.grad.copy_(v[i : i + p.numel()].view_as(p))
        i += p.numel()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    replay = torch.randn(4000, 8, 800)
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(folder, every=10**9 if "1" in FIX else 5)
        dist.barrier()
        t0 = time.perf_counter()
        for step in range(STEPS):
            x = replay[torch.randint(0, 4000, (48,))]
            y = torch.randint(0, 12, (48,))
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            sync(net, world)
            opt.step()
            if rank == 0:
                keeper.maybe(step, net, opt, replay)
        dist.barrier()
        if rank == 0:
            print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.destroy_process_group()


main()
