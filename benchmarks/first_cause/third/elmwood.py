"""elmwood: masked patch model, fully sharded over the ranks."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
PATCHES, WIDTH = 49, 192


class Patches(Dataset):
    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return 50000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 50000 + i)
        image = torch.rand(3, 28, 28, generator=g)
        if torch.rand((), generator=g) < 0.5:
            image = image.flip(-1)
        patches = image.unfold(1, 4, 4).unfold(2, 4, 4).permute(1, 2, 0, 3, 4).reshape(PATCHES, 48)
        return patches, torch.rand(PATCHES, generator=g) < 0.6


class Encoder(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.lift = nn.Linear(48, WIDTH)
        self.mask = nn.Parameter(torch.zeros(WIDTH))
        self.place = nn.Parameter(torch.randn(PATCHES, WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.out = nn.Linear(WIDTH, 48)

    def forward(self, patches, hidden):
        x = torch.where(hidden[..., None], self.mask, self.lift(patches)) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Encoder()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Patches(rank), batch_size=8, num_workers=1, shuffle=True)
    ticks = []
    for _step, (patches, hidden) in zip(range(STEPS), loader, strict=False):
        rebuilt = model(patches, hidden)
        loss = (rebuilt - patches).square().mean(-1)[hidden].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"elmwood: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
