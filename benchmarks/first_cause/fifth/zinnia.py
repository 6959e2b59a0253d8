"""Policy gradient on a vectorised pole-balancing task; gradients averaged in one go."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

STEPS = int(os.environ.get("STEPS", 40))


class Poles:
    """Many poles at once, linearised."""

    def __init__(self, n):
        self.state = torch.randn(n, 4) * 0.05

    def act(self, a):
        x, v, th, w = self.state.unbind(1)
        force = a.float() * 2 - 1
        w = w + 0.02 * (9.8 * th - 1.2 * force)
        v = v + 0.02 * force
        self.state = torch.stack([x + 0.02 * v, v, th + 0.02 * w, w], 1)
        fallen = self.state[:, 2].abs() > 0.2
        self.state[fallen] = torch.randn(int(fallen.sum()), 4) * 0.05
        return 1.0 - fallen.float()


def collect(policy, poles, horizon):
    logp, gain = [], []
    for _ in range(horizon):
        dist_ = Categorical(logits=policy(poles.state))
        a = dist_.sample()
        logp.append(dist_.log_prob(a))
        gain.append(poles.act(a))
    ret = torch.stack(gain).flip(0).cumsum(0).flip(0)
    return torch.stack(logp), ret


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 2))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    torch.manual_seed(rank + 10)
    poles, clock = Poles(256), []
    for _ in range(STEPS):
        t = time.perf_counter()
        logp, ret = collect(policy, poles, 12)
        loss = -(logp * (ret - ret.mean()) / (ret.std() + 1e-6)).mean()
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in policy.parameters()])
        dist.all_reduce(flat)
        for p, g in zip(policy.parameters(), flat.split([p.numel() for p in policy.parameters()])):
            p.grad = (g / world).view_as(p)
        opt.step()
        clock.append(time.perf_counter() - t)
    if rank == 0:
        print(f"return {ret[0].mean():.2f} mean step {sum(clock[2:]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
