"""Many-expert regressor that averages its gradients tensor by tensor."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))


class Experts(nn.Module):
    def __init__(self, n=10, d=128):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d)) for _ in range(n))

    def forward(self, x):
        return torch.stack([e(x) for e in self.experts]).mean(0)


class Reducer:
    def __init__(self, params):
        self.params = list(params)
        self.world = dist.get_world_size()

    def spread(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad.div_(self.world)

    def spread_flat(self):
        flat = torch._utils._flatten_dense_tensors([p.grad for p in self.params])
        dist.all_reduce(flat)
        flat.div_(self.world)
        for p, g in zip(
            self.params, torch._utils._unflatten_dense_tensors(flat, [p.grad for p in self.params]), strict=False
        ):
            p.grad.copy_(g)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    net = Experts()
    red = Reducer(net.parameters())
    share = red.spread_flat if "1" in FIX else red.spread
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    t0 = time.perf_counter()
    for _ in range(STEPS):
        x = torch.randn(256, 128)
        opt.zero_grad()
        (net(x) - x).square().mean().backward()
        share()
        opt.step()
    if dist.get_rank() == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
