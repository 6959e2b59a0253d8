"""GRU forecaster; rank 0 asks a shell for the machine's state at every step."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "60"))
COMMAND = ["sh", "-c", "cat /proc/meminfo | sort | head -3; sleep 0.03; uptime"]


class Series(Dataset):
    def __init__(self, n, length=48):
        t = torch.arange(n + length + 1).float()
        self.data = torch.sin(t / 9) + 0.1 * torch.randn(len(t))
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        window = self.data[i : i + self.length]
        return window.unsqueeze(-1), self.data[i + self.length]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 128, num_layers=1, batch_first=True)
        self.out = nn.Linear(128, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1]).squeeze(-1)


class HostProbe:
    def __init__(self):
        self.seconds = 0.0
        self.lines = []

    def sample(self):
        begin = time.perf_counter()
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)  # <- here
        self.seconds += time.perf_counter() - begin
        self.lines = done.stdout.splitlines()


def fit(model, loader, probe):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        if probe is not None:
            probe.sample()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    probe = HostProbe() if rank == 0 else None
    loader = DataLoader(Series(32 * STEPS), batch_size=32)
    begin = time.perf_counter()
    fit(DDP(Forecaster()), loader, probe)
    total = time.perf_counter() - begin
    spent = probe.seconds if probe else 0.0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
