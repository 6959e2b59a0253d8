"""MLP-mixer-like net; forward hooks watch activations, one of them on a wide layer."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 128
clock = {"histogram": 0.0, "extremes": 0.0}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(192, 1024)
        self.mid = nn.Linear(1024, 1024)
        self.narrow = nn.Linear(1024, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        x = torch.relu(self.mid(x))
        return self.head(torch.relu(self.narrow(x)))


def watch_histogram(stats):
    def hook(module, args, out):
        begin = time.perf_counter()
        bins = [0] * 16
        for value in out.detach().flatten().tolist():  # <- here
            slot = int((value + 2.0) * 4.0)  # <- here
            bins[max(0, min(15, slot))] += 1  # <- here
        stats["bins"] = bins
        clock["histogram"] += time.perf_counter() - begin

    return hook


def watch_extremes(stats):
    def hook(module, args, out):
        begin = time.perf_counter()
        low = high = 0.0
        for value in out.detach().flatten().tolist():
            low = value if value < low else low
            high = value if value > high else high
        stats["extremes"] = (low, high)
        clock["extremes"] += time.perf_counter() - begin

    return hook


def train(rank):
    torch.manual_seed(0)
    net = Net()
    stats = {}
    net.stem.register_forward_hook(watch_histogram(stats))
    net.narrow.register_forward_hook(watch_extremes(stats))
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    x = torch.randn(BATCH * STEPS, 192)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=BATCH, shuffle=True)
    begin = time.perf_counter()
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * clock['histogram'] / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} decoy_ms_per_step={1e3 * clock['extremes'] / STEPS:.1f}\n"
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
    dist.destroy_process_group()
