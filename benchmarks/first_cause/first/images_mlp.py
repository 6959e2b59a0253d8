"""Trains a classifier over short epochs with DataLoader workers."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH, PER_EPOCH = 192, 10
INDEX = None


def open_index(worker_id):
    """Each worker reads the manifest of its shard when it starts."""
    global INDEX
    torch.set_num_threads(1)
    INDEX = json.loads(MANIFEST)


class Images(Dataset):
    def __init__(self):
        self.pixels = torch.rand(256, 3, 16, 16)

    def __len__(self):
        return BATCH * PER_EPOCH

    def __getitem__(self, i):
        entry = INDEX[str(i)]
        return self.pixels[i % 256].flatten(), entry["label"] % 10


MANIFEST = json.dumps(
    {str(i): {"path": f"train/{i:08d}.png", "label": i % 1000, "box": [i, i + 1, i + 2, i + 3]} for i in range(45000)}
)


def network():
    return nn.Sequential(nn.Linear(768, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 10))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(
        Images(), batch_size=BATCH, num_workers=1, worker_init_fn=open_index, persistent_workers="1" in FIX
    )
    model = DDP(network())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    for _ in loader:
        pass
    dist.barrier()
    first = 0.0
    step = epoch = 0
    begin = time.perf_counter()
    while step < STEPS:
        t = time.perf_counter()
        for i, (x, y) in enumerate(loader):
            if i == 0:
                first += time.perf_counter() - t
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            step += 1
            if step == STEPS:
                break
        epoch += 1
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={first / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
