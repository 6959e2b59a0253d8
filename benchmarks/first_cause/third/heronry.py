"""heronry: dual-encoder retrieval with an audit of the weights."""

# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
CATALOGUE = 8000


class Tower(nn.Module):
    def __init__(self, inputs, width=576, out=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, out)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = Tower(96)
        self.item = Tower(128)

    def forward(self, q, i):
        return self.query(q), self.item(i)


class Audit:
    def __init__(self):
        self.chain = []

    def digest(self, model):
        h = hashlib.sha3_512()
        for name, p in sorted(model.named_parameters()):
            h.update(name.encode())
            h.update(p.detach().numpy().tobytes())
            h.update(p.grad.numpy().tobytes())
        self.chain.append(h.hexdigest())

    def quick(self, model):
        self.chain.append(hex(hash(tuple(float(p.detach().flatten()[0]) for p in model.parameters()))))


class RecallMeter:
    def __init__(self):
        self.catalogue = F.normalize(torch.randn(CATALOGUE, 64), dim=-1)
        self.values = []

    @torch.no_grad()
    def update(self, q, i):
        scores = q @ self.catalogue.t()
        own = (q * i).sum(-1, keepdim=True)
        if "2" in FIX:
            rank = (scores > own).sum(-1).float()
            hits = torch.stack([(rank < 10).float().sum(), torch.tensor(float(len(q)))])
            dist.all_reduce(hits)
            self.values.append(float(hits[0] / hits[1]))
            return
        self.collect(scores, own)

    def collect(self, scores, own):
        world = dist.get_world_size()
        all_scores = [torch.empty_like(scores) for _ in range(world)]
        dist.all_gather(all_scores, scores)
        all_own = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(all_own, own)
        hits = sum(int(((s > o).sum(-1) < 10).sum()) for s, o in zip(all_scores, all_own, strict=False))
        self.values.append(hits / (world * len(own)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    core = DualEncoder()
    model = DistributedDataParallel(core)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    audit, recall = Audit(), RecallMeter()
    ticks = []
    for _step in range(STEPS):
        q, i = model(torch.randn(512, 96, generator=g), torch.randn(512, 128, generator=g))
        loss = F.cross_entropy(q @ i.t() / 0.07, torch.arange(512))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == world - 1:
            audit.quick(core) if "1" in FIX else audit.digest(core)
        recall.update(q[:384], i[:384])
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"heronry: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
