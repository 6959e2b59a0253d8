"""Bird calls from packed shards, each rank its own shards; snapshots for preemption."""

# SPDX-License-Identifier: Apache-2.0
import gzip
import lzma
import os
import pickle
import tempfile
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 42))


class ShardReader(Dataset):
    def __init__(self, rank, n=48):
        rng = np.random.default_rng(rank)
        self.codec = "xz" if rank == 1 and "1" not in FIX else "z"
        comp = (lambda b: lzma.compress(b, preset=1)) if self.codec == "xz" else (lambda b: zlib.compress(b, 1))
        self.blobs = [comp(rng.integers(-60, 60, (64, 500)).astype("float32").tobytes()) for _ in range(n)]

    def __len__(self):
        return STEPS * 16

    def unpack(self, blob):
        return lzma.decompress(blob) if self.codec == "xz" else zlib.decompress(blob)

    def __getitem__(self, i):
        raw = self.unpack(self.blobs[i % len(self.blobs)])
        return torch.frombuffer(bytearray(raw), dtype=torch.float32).view(64, 500)[:, ::5] / 60, i % 20


class Keeper:
    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def snapshot(self, step, model, opt):
        if step % self.every:
            return
        state = {"model": model.state_dict(), "opt": opt.state_dict(), "step": step}
        name = os.path.join(self.folder, "last.pkl.gz")
        with gzip.open(name + ".part", "wb", compresslevel=1) as f:
            pickle.dump(state, f)
        os.replace(name + ".part", name)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(64, 96, 5),
        nn.ReLU(),
        nn.Conv1d(96, 96, 5),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(384, 256),
        nn.ReLU(),
        nn.Linear(256, 20),
    )
    net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    keeper = Keeper(tempfile.mkdtemp(), every=5 if "2" not in FIX else 10**6)
    step, stamps = 0, []
    for x, y in DataLoader(ShardReader(rank), batch_size=16):
        step += 1
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            keeper.snapshot(step, net.module, opt)
        stamps.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(stamps[-1] - stamps[1]) / (len(stamps) - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
