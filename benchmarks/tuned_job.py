"""A small job of one CPU rank with one planted setting that is too low or too high, for bench_tune.py.

python benchmarks/tuned_job.py NAME
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 8


class Samples(Dataset[torch.Tensor]):
    """Samples that take time, as a disk does; each sixteenth batch takes long where ``burst_s`` says so."""

    def __init__(self, count: int, sample_s: float, burst_s: float = 0.0) -> None:
        self.count, self.sample_s, self.burst_s = count, sample_s, burst_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        is_burst = self.burst_s and index // BATCH % 16 == 15 and index % BATCH == 0
        time.sleep(self.burst_s if is_burst else self.sample_s)
        return torch.randn(256, generator=torch.Generator().manual_seed(index))


def main(name: str) -> None:
    """Train until the recorder ends the job."""
    torch.manual_seed(1)
    if name != "threads":
        torch.set_num_threads(1)
    width, device_s = (1500, 0.0) if name == "threads" else (256, 0.02)
    loaders = {
        "few_workers": lambda: DataLoader(Samples(8000, 0.008), BATCH, shuffle=True, num_workers=1),
        "in_the_loop": lambda: DataLoader(Samples(8000, 0.004), BATCH, shuffle=True),
        "new_workers": lambda: DataLoader(Samples(8 * BATCH, 0.001), BATCH, num_workers=2),
        "bursts": lambda: DataLoader(Samples(8000, 0.001, 0.2), BATCH, num_workers=1),
        "threads": lambda: DataLoader(Samples(8000, 0.0), BATCH),
        "balanced": lambda: DataLoader(Samples(8000, 0.001), BATCH, shuffle=True, num_workers=1),
    }
    loader = loaders[name]()
    model = torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(1000):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch.repeat(16, 1) if name == "threads" else batch).square().mean()
            time.sleep(device_s)  # as if a device computed
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
