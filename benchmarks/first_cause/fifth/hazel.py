"""Ad ranking from log lines; optimizer work is shared out between the ranks."""

# SPDX-License-Identifier: Apache-2.0
import csv
import datetime
import io
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 36))


class AdLog(Dataset):
    def __init__(self, rank):
        rng = random.Random(rank)
        self.lines = [
            ",".join(
                ["2024-03-%02dT%02d:11:09" % (rng.randint(1, 28), rng.randint(0, 23))]
                + ["%.4f" % rng.random() for _ in range(60)]
            )
            for _ in range(256)
        ]
        self.ready = [self.parse_line(l) for l in self.lines] if "2" in FIX else None

    def __len__(self):
        return STEPS * 128

    def parse_line(self, line):
        row = next(csv.DictReader(io.StringIO(line), fieldnames=["when"] + [f"f{k}" for k in range(60)]))
        when = datetime.datetime.strptime(row.pop("when"), "%Y-%m-%dT%H:%M:%S")
        feats = [float(v) for v in row.values()]
        return torch.tensor(feats + [when.hour / 24, when.weekday() / 7])

    def __getitem__(self, i):
        k = i % len(self.lines)
        x = self.ready[k] if self.ready else self.parse_line(self.lines[k])
        return x, x[0].round()


class SharedLamb:
    """Each rank updates the tensors it owns and passes them on."""

    def __init__(self, params, world, rank, lr=1e-3):
        self.params, self.lr = list(params), lr
        self.owner = self.carve(world)
        self.rank = rank
        self.m = {i: torch.zeros_like(p) for i, p in enumerate(self.params) if self.owner[i] == rank}
        self.v = {i: torch.zeros_like(p) for i, p in enumerate(self.params) if self.owner[i] == rank}

    def carve(self, world):
        if "1" not in FIX:  # weights here, biases there
            return [0 if p.ndim > 1 else 1 for p in self.params]
        load, owner = [0] * world, {}
        for i in sorted(range(len(self.params)), key=lambda i: -self.params[i].numel()):
            r = load.index(min(load))
            owner[i] = r
            load[r] += self.params[i].numel()
        return owner

    @torch.no_grad()
    def step(self):
        for i, p in enumerate(self.params):
            if self.owner[i] == self.rank:
                self.update(i, p)
        for i, p in enumerate(self.params):
            dist.broadcast(p.data, self.owner[i])

    def update(self, i, p):
        m, v = self.m[i], self.v[i]
        m.mul_(0.9).add_(p.grad, alpha=0.1)
        v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        u = m / (v.sqrt() + 1e-6) + 0.01 * p
        if p.ndim > 1:
            # orthogonalised direction (a few Newton-Schulz rounds)
            u = u / (u.norm() + 1e-6)
            for _ in range(6):
                u = 1.5 * u - 0.5 * u @ (u.T @ u)
        p.add_(u, alpha=-self.lr)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(62, 288),
        nn.ReLU(),
        *[m for _ in range(4) for m in (nn.Linear(288, 288), nn.ReLU())],
        nn.Linear(288, 1),
    )
    opt = SharedLamb(net.parameters(), world, rank)
    stamps = []
    for x, y in DataLoader(AdLog(rank), 128):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).squeeze(1), y)
        net.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in net.parameters()])
        dist.all_reduce(flat)
        for p, f in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
            p.grad.copy_(f.view_as(p) / world)
        opt.step()
        stamps.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(stamps[-1] - stamps[1]) / (len(stamps) - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
