"""Metric learning on synthetic faces: embeddings are pooled over ranks for the recall figure."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn, optim

FIX = os.environ.get("FIX", "")


def pool_metrics(rows, group=None):
    """One list of per-example rows from all ranks."""
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, rows, group=group)
    return [r for part in everyone for r in part]


def example_rows(step, ids, emb, loss):
    emb = emb.detach()
    return [{"step": step, "id": int(i), "emb": e, "norm": float(e.norm()), "loss": loss} for i, e in zip(ids, emb)]


class FaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 64, 128),
        )

    def forward(self, x):
        return nn.functional.normalize(self.trunk(x), dim=1)


def main(steps):
    torch.set_num_threads(1)
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(FaceNet())
    opt = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    secs = []
    for s in range(steps):
        t0 = time.perf_counter()
        x, ids = torch.randn(96, 1, 32, 32), torch.randint(0, 24, (96,))
        e = net(x)
        sim = e @ e.T
        same = (ids[:, None] == ids[None]).float()
        loss = ((sim - same) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if "1" not in FIX or s % 12 == 11:
            rows = pool_metrics(example_rows(s, ids, e, loss.item()))
            top = max(r["norm"] for r in rows)
        secs.append(time.perf_counter() - t0)
    if rank == 0:
        print("top norm %.3f, mean step %.1f ms" % (top, 1e3 * sum(secs[2:]) / len(secs[2:])))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(int(os.environ.get("STEPS", 40)))
    dist.destroy_process_group()
