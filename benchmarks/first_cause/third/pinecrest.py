"""pinecrest: bird-call embedding with rarity-aware sampling."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
CALLS = 120000


class Calls(Dataset):
    def __init__(self, seed):
        self.seed = seed
        self.species = np.random.default_rng(0).zipf(1.6, CALLS).clip(max=60) - 1

    def __len__(self):
        return CALLS

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seed * CALLS + i)
        patch = rng.standard_normal((1, 32, 64), dtype=np.float32)
        shift = int(rng.integers(0, 64))
        return torch.from_numpy(np.roll(patch, shift, -1)), int(self.species[i])


class RaritySampler(Sampler):
    def __init__(self, species, seed, decay=0.5):
        self.rng = np.random.default_rng(seed)
        counts = np.bincount(species)
        self.weight = 1.0 / counts[species]
        self.decay = decay

    def __len__(self):
        return CALLS

    def __iter__(self):
        weight = self.weight.copy()
        if "1" in FIX:
            while True:
                for i in self.rng.choice(CALLS, size=4096, p=weight / weight.sum()):
                    weight[i] *= self.decay
                    yield int(i)
        while True:
            i = int(self.rng.choice(CALLS, p=weight / weight.sum()))
            weight[i] *= self.decay
            yield i


class CallNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(c, 2 * c, 3, padding=1),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * c, 60),
        )

    def forward(self, x):
        return self.net(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Calls(rank)
    loader = DataLoader(data, batch_size=20, sampler=RaritySampler(data.species, rank), num_workers=1)
    model = DistributedDataParallel(CallNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ticks = []
    for _step, (patch, species) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(patch), species)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"pinecrest: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
