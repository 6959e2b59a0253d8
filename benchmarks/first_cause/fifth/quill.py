"""Image-free toy of a recommendation tower with gradient bookkeeping."""

# SPDX-License-Identifier: Apache-2.0
import os
import time
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn

steps = int(os.environ.get("STEPS", 40))
fix = os.environ.get("FIX", "")


class GradLedger:
    """Keeps a running picture of each gradient's spread."""

    def __init__(self, module):
        self.seen = defaultdict(list)
        for name, p in module.named_parameters():
            if p.ndim == 2:
                p.register_hook(self.tally(name))

    def tally(self, name):
        def on_grad(g):
            flat = g.detach().abs().flatten()
            ranked, _ = flat.sort()
            n = ranked.numel()
            self.seen[name].append([ranked[int(n * q)].item() for q in (0.1, 0.5, 0.9, 0.99)])

        return on_grad


class Towers(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.user = nn.Sequential(
            nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 64)
        )
        self.item = nn.Sequential(
            nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 64)
        )

    def forward(self, u, i):
        return self.user(u) @ self.item(i).T


def run():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    net = Towers()
    if "1" not in fix:
        ledger = GradLedger(net)
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    total = []
    for s in range(steps):
        begin = time.perf_counter()
        u, i = torch.randn(224, 128), torch.randn(224, 128)
        scores = ddp(u, i)
        loss = nn.functional.cross_entropy(scores, torch.arange(224))
        opt.zero_grad()
        loss.backward()
        opt.step()
        total.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(f"mean step {sum(total[3:]) / len(total[3:]) * 1000:.2f} ms")
    dist.destroy_process_group()


run()
