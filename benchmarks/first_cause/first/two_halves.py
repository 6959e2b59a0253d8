"""Trains a network in two equal halves with microbatches."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = int(os.environ.get("STEPS", "40"))
MICRO, ROWS, WIDTH, LAYERS = 6, 48, 448, 3


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Pipe:
    """One forward, one backward: the first half keeps one microbatch ahead."""

    def __init__(self, rank):
        self.rank = rank
        self.net = Half()
        self.grad = torch.empty(ROWS, WIDTH)

    def finish(self, y):
        dist.recv(self.grad, src=1)
        y.backward(self.grad)

    @staticmethod
    def wait_all(sent):
        for work in sent:
            work.wait()

    def upstream(self, parts):
        ahead, sent = None, []
        for x in parts:
            y = self.net(x)
            sent.append(dist.isend(y.detach(), dst=1))
            if ahead is not None:
                self.finish(ahead)
            ahead = y
        self.finish(ahead)
        self.wait_all(sent)

    def downstream(self):
        sent = []
        for _ in range(MICRO):
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, src=0)
            x.requires_grad_()
            loss = self.net(x).square().mean() / MICRO
            loss.backward()
            sent.append(dist.isend(x.grad, dst=0))
        self.wait_all(sent)

    def step(self):
        if self.rank == 0:
            self.upstream(torch.randn(MICRO, ROWS, WIDTH))
        else:
            self.downstream()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    pipe = Pipe(rank)
    opt = torch.optim.SGD(pipe.net.parameters(), lr=0.01)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        opt.zero_grad()
        pipe.step()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
