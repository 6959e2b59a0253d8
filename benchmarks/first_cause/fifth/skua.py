"""Sentiment with a bidirectional LSTM; all ranks evaluate their share of the dev set."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class Senti(nn.Module):
    def __init__(self, vocab=5000, d=64):
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.l = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.o = nn.Linear(2 * d, 2)

    def forward(self, x):
        return self.o(self.l(self.e(x))[0].amax(1))


class Job:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.net = nn.parallel.DistributedDataParallel(Senti())
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.gen = torch.Generator().manual_seed(self.rank)
        self.dev = [self.draw() for _ in range(2)]

    def draw(self):
        x = torch.randint(0, 5000, (24, 40), generator=self.gen)
        return x, (x.sum(1) % 2)

    def step(self):
        x, y = self.draw()
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss

    @torch.no_grad()
    def evaluate(self):
        hits = sum((self.net.module(x).argmax(1) == y).sum() for x, y in self.dev)
        dist.all_reduce(hits)
        return hits.item() / (self.world * 48)

    def run(self, n):
        marks = []
        for k in range(1, n + 1):
            self.step()
            if k % 25 == 0:
                acc = self.evaluate()
                if self.rank == 0:
                    print(f"step {k} dev {acc:.3f}")
            marks.append(time.perf_counter())
        if self.rank == 0:
            print(f"mean step {(marks[-1] - marks[1]) / (n - 2) * 1e3:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Job().run(int(os.environ.get("STEPS", 50)))
    dist.destroy_process_group()
