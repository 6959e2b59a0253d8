"""Two equal pipeline stages that swap micro-batches forwards and backwards."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "40"))
MICRO, B, D = 4, 64, 512


def half():
    return nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU())


def first(net):
    outs = []
    for _ in range(MICRO):
        y = net(torch.randn(B, D))
        dist.send(y.detach(), 1)
        outs.append(y)
    for y in outs:
        g = torch.empty(B, D)
        dist.recv(g, 1)
        y.backward(g)


def second(net):
    ready = []
    for _ in range(MICRO):
        x = torch.empty(B, D)
        dist.recv(x, 0)
        x.requires_grad_()
        net(x).square().mean().backward()
        ready.append(dist.isend(x.grad, 0))
    for w in ready:
        w.wait()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = half()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    play = first if rank == 0 else second
    t0 = time.perf_counter()
    for _ in range(STEPS):
        opt.zero_grad()
        play(net)
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


main()
