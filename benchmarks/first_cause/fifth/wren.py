"""Two halves of a residual tower on two ranks, activations handed over."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

D, ROWS, PARTS = 288, 80, 4


def half(last):
    layers = []
    for _ in range(7):
        layers += [nn.Linear(D, D), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(D, 6)) if last else nn.Sequential(*layers)


def lower(net):
    outs = []
    for _ in range(PARTS):
        o = net(torch.randn(ROWS, D))
        dist.send(o.detach(), 1)
        outs.append(o)
    for o in outs:
        g = torch.empty_like(o)
        dist.recv(g, 1)
        o.backward(g)


def upper(net):
    sent = []
    for _ in range(PARTS):
        h = torch.empty(ROWS, D)
        dist.recv(h, 0)
        h.requires_grad_(True)
        nn.functional.cross_entropy(net(h), torch.randint(0, 6, (ROWS,))).backward()
        sent.append((dist.isend(h.grad, 0), h.grad))
    for work, _ in sent:
        work.wait()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, steps = dist.get_rank(), int(os.environ.get("STEPS", 45))
    torch.manual_seed(rank)
    net = half(last=rank == 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.005)
    work = upper if rank else lower
    marks = []
    for _ in range(steps):
        opt.zero_grad()
        work(net)
        opt.step()
        marks.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(marks[-1] - marks[1]) / (steps - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
