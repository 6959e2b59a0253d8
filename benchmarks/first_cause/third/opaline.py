"""opaline: contrastive pre-training with a feature queue."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
QUEUE = 98304
DIM = 64


class Views(Dataset):
    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return 100000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        image = torch.rand(3, 32, 32, generator=g)
        return self.augment(image, g), self.augment(image, g)

    @staticmethod
    def augment(image, g):
        if torch.rand((), generator=g) < 0.5:
            image = image.flip(-1)
        gain = 0.6 + 0.8 * torch.rand(3, 1, 1, generator=g)
        return (image * gain).clamp(0, 1)


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 96, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(96, DIM),
        )
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, DIM), dim=1))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    def forward(self, a, b):
        za = F.normalize(self.encoder(a), dim=1)
        zb = F.normalize(self.encoder(b), dim=1)
        rows = torch.randint(0, QUEUE, (2048,))
        positive = (za * zb.detach()).sum(1, keepdim=True)
        negative = za @ self.queue[rows].t()
        return torch.cat([positive, negative], 1) / 0.1, zb.detach()

    @torch.no_grad()
    def enqueue(self, keys):
        parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, keys)
        keys = torch.cat(parts)
        at = int(self.head)
        self.queue[at : at + len(keys)] = keys[: QUEUE - at]
        self.head.fill_((at + len(keys)) % QUEUE)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    core = Contrast()
    model = DistributedDataParallel(core, broadcast_buffers="1" not in FIX)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Views(rank << 20), batch_size=32, num_workers=1)
    ticks = []
    for _step, (a, b) in zip(range(STEPS), loader, strict=False):
        logits, keys = model(a, b)
        loss = F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        core.enqueue(keys)
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"opaline: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
