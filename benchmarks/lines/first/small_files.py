"""Bag-of-words classifier; the annotations of every step lie in many small files."""

# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "60"))
FILES = 1500
clock = {"read": 0.0}


class Bags(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        return torch.randint(0, 5000, (60,), generator=gen), i % 20


class BagModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(5000, 256, mode="mean")
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.head = nn.Linear(1024, 20)

    def forward(self, ids):
        return self.head(self.body(self.bag(ids)))


def write_annotations(root):
    paths = []
    for i in range(FILES):
        path = root / f"{i:05d}.txt"
        path.write_text(f"label {i % 20}\nweight {1 / (1 + i % 9):.4f}\n" * 6)
        paths.append(str(path))
    return paths


def load_annotations(paths):
    size = 0
    for path in paths:  # <- here
        with open(path, encoding="utf-8") as f:  # <- here
            text = f.read()  # <- here
        size += len(text)  # <- here
    return size


def run(rank, paths):
    torch.manual_seed(1)
    model = DDP(BagModel())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Bags(128 * STEPS), batch_size=128)
    begin = time.perf_counter()
    for ids, label in loader:
        t = time.perf_counter()
        load_annotations(paths)
        clock["read"] += time.perf_counter() - t
        loss = nn.functional.cross_entropy(model(ids), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * clock['read'] / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    folder = Path(tempfile.mkdtemp(prefix="annotations_"))
    try:
        run(dist.get_rank(), write_annotations(folder))
    finally:
        shutil.rmtree(folder)
    dist.destroy_process_group()
