"""rookery: resolution curriculum for aerial colony counts."""

# SPDX-License-Identifier: Apache-2.0
import os
import re
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
REFERENCE = re.compile(r"\$\{([a-z0-9_.]+)\}")


class Settings:
    def __init__(self):
        self.values = {"base.size": "32", "base.scale": "1"}
        for i in range(1, 25):
            self.values[f"stage{i}.scale"] = f"${{{'base' if i == 1 else f'stage{i - 1}'}.scale}}"
            self.values[f"stage{i}.size"] = f"${{base.size}}*${{stage{i}.scale}}"
        self.cache = {}

    def resolve(self, text):
        while True:
            match = REFERENCE.search(text)
            if not match:
                return text
            text = text[: match.start()] + self.resolve(self.values[match[1]]) + text[match.end() :]

    def get(self, key):
        if "2" in FIX:
            if key not in self.cache:
                self.cache[key] = self.resolve(self.values[key])
            return self.cache[key]
        return self.resolve(self.values[key])


class ColonyNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(c, 1)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        for conv in self.body:
            h = h + torch.relu(conv(h))
        return self.head(h.mean((2, 3))).squeeze(-1)


class Curriculum:
    def __init__(self, model, settings, every=8):
        self.settings, self.every = settings, every
        self.model = torch.compile(model, backend="aot_eager", dynamic=False)

    def advance(self, step):
        if step % self.every == 0 and (step == 0 or "1" not in FIX):
            torch._dynamo.reset()

    def audit(self):
        return [self.settings.get(f"stage{i}.size") for i in range(1, 25) for _ in range(2)]

    def size(self):
        base, scale = self.settings.get("stage1.size").split("*")
        return int(base) * int(scale)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    core = ColonyNet()
    curriculum = Curriculum(core, Settings())
    model = DistributedDataParallel(curriculum.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    ticks = []
    for step in range(STEPS):
        curriculum.advance(step)
        if rank == world - 1:
            curriculum.audit()
        side = curriculum.size()
        image = torch.rand(8, 3, side, side, generator=g)
        loss = nn.functional.mse_loss(model(image), image.mean((1, 2, 3)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"rookery: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
