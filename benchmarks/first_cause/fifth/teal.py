"""Contrastive sketch encoder, four ranks."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
encoder = nn.Sequential(
    nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 5 * 5, 64)
)
encoder = nn.parallel.DistributedDataParallel(encoder)
opt = torch.optim.Adam(encoder.parameters(), lr=1e-3)
torch.manual_seed(rank + 1)
steps = int(os.environ.get("STEPS", 36))
begun = 0.0
for step in range(steps):
    if step == 2:
        begun = time.time()
    base = torch.rand(48, 1, 32, 32)
    both = torch.cat([base + 0.1 * torch.randn_like(base), base + 0.1 * torch.randn_like(base)])
    z = nn.functional.normalize(encoder(both), dim=1)
    logits = z[:48] @ z[48:].T / 0.1
    loss = nn.functional.cross_entropy(logits, torch.arange(48))
    opt.zero_grad()
    loss.backward()
    opt.step()
if rank == 0:
    print(f"loss {loss.item():.3f} mean step {(time.time() - begun) / (steps - 2) * 1e3:.1f} ms")
dist.destroy_process_group()
