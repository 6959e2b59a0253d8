"""Recipe-ranking relay over three ranks; the judge scores, the first rank stores."""

# SPDX-License-Identifier: Apache-2.0
import io
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
B, D = 320, 256


class Cook:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(D, 320), nn.GELU(), nn.Linear(320, D))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def stir(self, x):
        self.opt.zero_grad()
        y = self.net(x)
        (y.mean(0) - x.mean(0)).square().sum().backward()
        self.opt.step()
        return y.detach()


class Pantry:
    """Writes the whole pantry next to the weights every few steps."""

    def __init__(self, where):
        self.where = where
        self.jars = torch.randn(8_000_000)

    def store(self, cook):
        box = io.BytesIO()
        torch.save({"w": cook.net.state_dict(), "jars": self.jars}, box)
        with open(os.path.join(self.where, "pantry.bin"), "wb") as f:
            f.write(box.getbuffer())


class Judge:
    def score(self, y):
        """Pairwise order agreement, counted the long way."""
        v = y[:, 0].tolist() + y[:, 1].tolist()
        good = 0
        for i, a in enumerate(v):
            for b in v[i + 1 :]:
                good += a < b
        return good


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    cook, judge = Cook(), Judge()
    with tempfile.TemporaryDirectory() as where:
        pantry = Pantry(where) if rank == 0 else None
        dist.barrier()
        t0 = time.perf_counter()
        for step in range(STEPS):
            if rank == 0:
                dist.send(cook.stir(torch.randn(B, D)), 1)
                verdict = torch.empty(1)
                dist.recv(verdict, 2)
                if step % 5 == 4 and "2" not in FIX:
                    pantry.store(cook)
            elif rank == 1:
                x = torch.empty(B, D)
                dist.recv(x, 0)
                dist.send(cook.stir(x), 2)
            else:
                x = torch.empty(B, D)
                dist.recv(x, 1)
                y = cook.stir(x)
                dist.send(torch.tensor([float(judge.score(y) if "1" not in FIX else 0)]), 0)
        dist.barrier()
        if rank == 0:
            print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.destroy_process_group()


main()
