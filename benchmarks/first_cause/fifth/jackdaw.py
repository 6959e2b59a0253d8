"""Fraud detection with a strong class imbalance, drawn to balance on the fly."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))
N = 60000


class Balanced(Sampler):
    """Draws frauds as often as honest payments."""

    def __init__(self, labels, count, seed):
        freq = np.bincount(labels)
        w = 1.0 / freq[labels]
        self.p, self.count = w / w.sum(), count
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.count

    def __iter__(self):
        if "1" in FIX:
            yield from self.rng.choice(N, size=self.count, p=self.p).tolist()
            return
        for _ in range(self.count):
            yield int(self.rng.choice(N, p=self.p))


def pack_trace(folder, step):
    """Bundle the trace so far, for the auditors."""
    path = os.path.join(folder, "trace.bin")
    with open(path, "ab") as f:
        f.write(os.urandom(1000) * 12000)
    subprocess.run(["gzip", "-k", "-f", "-6", path], check=True)
    os.remove(path)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 40, generator=g)
    y = (torch.rand(N, generator=g) < 0.02).long()
    data = TensorDataset(x, y)
    loader = DataLoader(data, 64, sampler=Balanced(y.numpy(), STEPS * 64, rank))
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(40, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    )
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    folder, times = tempfile.mkdtemp(), []
    for step, (a, b) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 4 and "2" not in FIX:
            pack_trace(folder, step)
        times.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(times[-1] - times[1]) / (len(times) - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
