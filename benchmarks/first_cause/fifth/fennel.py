"""Parameter server with three learners, policy evaluation on random walks."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 30))


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(48, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1)
    )


class Keeper:
    """Owns the weights; gathers gradients and hands the new weights out."""

    def __init__(self, net):
        self.net, self.lr = net, 1e-3
        self.flat = parameters_to_vector(net.parameters()).detach()

    def serve_once(self, world):
        total = torch.zeros_like(self.flat)
        if "1" in FIX:
            dist.reduce(total, 0)
        else:
            part = torch.empty_like(self.flat)
            for learner in range(1, world):
                dist.recv(part, learner)
                total += part
        self.flat -= self.lr * total / (world - 1)
        if "1" in FIX:
            dist.broadcast(self.flat, 0)
        else:
            for learner in range(1, world):
                for piece in self.flat.split(16384):
                    dist.send(piece, learner)


def learn_once(net, flat):
    vector_to_parameters(flat, net.parameters())
    x = torch.randn(48, 48)
    loss = (net(x).squeeze(1) - x.cumsum(1)[:, -1]).square().mean()
    net.zero_grad()
    loss.backward()
    grad = torch.cat([p.grad.flatten() for p in net.parameters()])
    if "1" in FIX:
        dist.reduce(grad, 0)
        dist.broadcast(flat, 0)
    else:
        dist.send(grad, 0)
        for piece in flat.split(16384):
            dist.recv(piece, 0)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = make_net()
    keeper = Keeper(net) if rank == 0 else None
    flat = parameters_to_vector(net.parameters()).detach().clone()
    t = []
    for _ in range(STEPS):
        if keeper:
            keeper.serve_once(world)
        else:
            learn_once(net, flat)
        t.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(t[-1] - t[1]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
