"""Ranking model, written flat as a script; the manifest is parsed again at every step."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 192
OPTIONS = '{"lr": 0.02, "momentum": 0.9, "clip": 1.0, "layers": [768, 768]}'


def make_manifest(rows):
    rng = random.Random(4)
    return json.dumps(
        [
            {
                "id": i,
                "path": f"shard-{i % 64:03d}/{i:07d}.bin",
                "weight": rng.random(),
                "tags": [rng.randrange(50), rng.randrange(50)],
                "split": "train" if i % 9 else "valid",
            }
            for i in range(rows)
        ]
    )


class Ranker(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(256, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
manifest_text = make_manifest(14_000)
options = json.loads(OPTIONS)
model = DDP(Ranker(*options["layers"]))
opt = torch.optim.SGD(model.parameters(), lr=options["lr"], momentum=options["momentum"])
x = torch.randn(BATCH * STEPS, 256)
loader = DataLoader(TensorDataset(x, x[:, :16].sum(1)), batch_size=BATCH)

spent = 0.0
manifest = None
begin = time.perf_counter()
for step, (xb, yb) in enumerate(loader):
    options = json.loads(OPTIONS)
    t0 = time.perf_counter()
    manifest = json.loads(manifest_text)  # <- here
    spent += time.perf_counter() - t0
    scale = manifest[step % len(manifest)]["weight"]
    loss = nn.functional.mse_loss(model(xb), yb * scale)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
    opt.step()
total = time.perf_counter() - begin

sys.stderr.write(f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n")
dist.destroy_process_group()
