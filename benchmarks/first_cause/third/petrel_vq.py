"""petrel_vq: vector-quantised autoencoder with a shared score board."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
CODES = 256


class ScoreBoard:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)

    def exchange(self, step, values):
        if "1" in FIX:
            total = torch.tensor(list(values.values()))
            dist.all_reduce(total)
            return dict(zip(values, (total / self.world).tolist(), strict=False))
        for name, value in values.items():
            self.store.set(f"{step}/{name}/{self.rank}", f"{value:.8g}")
        mean = {}
        for name in values:
            keys = [f"{step}/{name}/{r}" for r in range(self.world)]
            for key in keys:
                self.store.wait([key])
            mean[name] = sum(float(self.store.get(key)) for key in keys) / self.world
        return mean


class Quantiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, width))

    def forward(self, z):
        index = torch.cdist(z, self.codes).argmin(-1)
        q = self.codes[index]
        loss = (q - z.detach()).square().mean() + 0.25 * (z - q.detach()).square().mean()
        return z + (q - z).detach(), index, loss


class VQ(nn.Module):
    def __init__(self, inputs=64, width=384, code=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, code))
        self.quant = Quantiser(code)
        self.dec = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, inputs))

    def forward(self, x):
        q, index, loss = self.quant(self.enc(x))
        return self.dec(q), index, loss


class CodeUsage:
    def __init__(self):
        self.counts = torch.zeros(CODES)

    def update(self, index):
        if "2" in FIX:
            self.counts += torch.bincount(index, minlength=CODES)
            return
        for i in range(len(index)):
            self.counts[index[i].item()] += 1


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    board = ScoreBoard(rank, world)
    usage = CodeUsage()
    model = DistributedDataParallel(VQ())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    ticks = []
    for step in range(STEPS):
        x = torch.randn(2500, 64, generator=g)
        y, index, commit = model(x)
        if rank == 1:
            usage.update(index)
        loss = nn.functional.mse_loss(y, x) + commit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        norms = {f"norm.{n}": float(p.detach().norm()) for n, p in model.named_parameters()}
        extremes = {f"max.{n}": float(p.grad.abs().max()) for n, p in model.named_parameters()}
        means = {f"mean.{n}": float(p.detach().mean()) for n, p in model.named_parameters()}
        board.exchange(step, {"loss": loss.item(), **norms, **extremes, **means})
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"petrel_vq: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
