"""Click model reading its examples out of an SQLite shelf."""

# SPDX-License-Identifier: Apache-2.0
import os
import sqlite3
import tempfile
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

STEPS = int(os.environ.get("STEPS", 36))
FIX = os.environ.get("FIX", "")
ROWS, BATCH = 4000, 24


def fill(path, rank):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE clicks (shown INTEGER, session TEXT, feats BLOB, clicked INTEGER)")
    g = torch.Generator().manual_seed(rank)
    for i in range(ROWS):
        db.execute(
            "INSERT INTO clicks VALUES (?,?,?,?)",
            (i, f"session-{i:06d}", torch.randn(64, generator=g).numpy().tobytes(), i % 2),
        )
    if "1" in FIX:
        db.execute("CREATE INDEX by_session ON clicks (session)")
    db.commit()
    db.close()


class SqliteShelf(Dataset):
    def __init__(self, path):
        self.db = sqlite3.connect(path)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        row = self.db.execute("SELECT feats, clicked FROM clicks WHERE session = ?", (f"session-{i:06d}",)).fetchone()
        return torch.frombuffer(bytearray(row[0]), dtype=torch.float32), float(row[1])


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    path = os.path.join(tempfile.mkdtemp(), "shelf.db")
    fill(path, rank)
    shelf = SqliteShelf(path)
    sampler = DistributedSampler(shelf)
    loader = DataLoader(shelf, BATCH, sampler=sampler, num_workers=0)
    net = nn.Sequential(nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 1))
    net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    done, start = 0, time.perf_counter()
    for x, y in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).squeeze(1), y.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        done += 1
        if done == 2:
            start = time.perf_counter()
        if done == STEPS:
            break
    if rank == 0:
        print("mean step %.1f ms" % (1e3 * (time.perf_counter() - start) / (STEPS - 2)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
