"""Pollen classification from shards; shards are dealt to two loader workers."""

# SPDX-License-Identifier: Apache-2.0
import lzma
import os
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

STEPS = int(os.environ.get("STEPS", 40))
FIX = os.environ.get("FIX", "")


def pack(kind, block):
    raw = block.tobytes()
    return lzma.compress(raw, preset=0) if kind == "xz" else zlib.compress(raw, 1)


class Shards(IterableDataset):
    def __init__(self, per_shard=2):
        rng = np.random.default_rng(1)
        self.shards = []
        for k in range(6):
            kind = "xz" if k % 2 and "1" not in FIX else "z"
            self.shards.append(
                (kind, [pack(kind, rng.integers(0, 9, (96, 1, 112, 112)).astype("float32")) for _ in range(per_shard)])
            )

    def unpack(self, kind, blob):
        raw = lzma.decompress(blob) if kind == "xz" else zlib.decompress(blob)
        return np.frombuffer(raw, "float32").reshape(96, 1, 112, 112)[:, :, ::4, ::4].copy()

    def __iter__(self):
        w = get_worker_info()
        while True:
            for kind, blobs in self.shards[w.id :: w.num_workers]:
                for b in blobs:
                    x = self.unpack(kind, b)
                    yield torch.from_numpy(x), torch.from_numpy(x.sum((1, 2, 3)).astype("int64") % 7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 7)
        )

    def forward(self, x):
        return self.f(x / 8)


if __name__ == "__main__":
    torch.set_num_threads(1)
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    t, n = None, 0
    for x, y in DataLoader(Shards(), batch_size=None, num_workers=2):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        if n == 4:
            t = time.perf_counter()
        if n == STEPS:
            break
    print("mean step %.2f ms" % (1e3 * (time.perf_counter() - t) / (STEPS - 4)))
