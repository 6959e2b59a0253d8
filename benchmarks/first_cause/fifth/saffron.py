"""Price curves with a small residual network, single process."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 60))


class LossBook:
    """Remembers every example's loss; says the percentiles for the progress line."""

    def __init__(self):
        self.losses = []

    def add(self, batch_losses):
        self.losses.extend(batch_losses.tolist())
        if "1" in FIX:
            del self.losses[:-2000]

    def summary(self):
        ranked = sorted(self.losses)
        return {q: ranked[len(ranked) * q // 100] for q in (5, 25, 50, 75, 95)}


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


net = nn.Sequential(nn.Linear(30, 160), Residual(160), Residual(160), nn.Linear(160, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
book, times = LossBook(), []
for step in range(STEPS):
    start = time.perf_counter()
    x = torch.randn(2048, 30)
    y = x.sin().sum(1, keepdim=True)
    each = (net(x) - y).pow(2).squeeze(1)
    loss = each.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    book.add(each.detach())
    line = book.summary()
    times.append(time.perf_counter() - start)
print(f"median loss {line[50]:.3f}; mean step {np.mean(times[2:]) * 1e3:.1f} ms")
