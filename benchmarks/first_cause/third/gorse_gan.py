"""gorse_gan: adversarial texture synthesis."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
LATENT = 48


class Generator(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.c = c
        self.seed = nn.Linear(LATENT, 4 * c * 16)
        self.net = nn.Sequential(
            nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * c, c, 4, 2, 1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.ConvTranspose2d(c, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.seed(z).view(len(z), 4 * self.c, 4, 4))


class Critic(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(c, 2 * c, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 4 * c, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * c, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def textures(generator, rows=32):
    phase = torch.rand(rows, 3, 1, 1, generator=generator) * 6.28
    freq = 0.2 + torch.rand(rows, 1, 1, 1, generator=generator)
    grid = torch.arange(32.0)
    return torch.sin(freq * (grid[:, None] + 0.5 * grid[None]) + phase)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen = DistributedDataParallel(Generator(), broadcast_buffers=False)
    critic = DistributedDataParallel(Critic())
    gen_optimizer = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.5, 0.99))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.99))
    g = torch.Generator().manual_seed(rank)
    ticks = []
    for _step in range(STEPS):
        real = textures(g)
        fake = gen(torch.randn(len(real), LATENT, generator=g))
        scores = critic(torch.cat([real, fake.detach()]))
        critic_loss = F.softplus(-scores[: len(real)]).mean() + F.softplus(scores[len(real) :]).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        for p in critic.parameters():
            p.requires_grad_(False)
        gen_loss = F.softplus(-critic.module(fake)).mean()
        gen_optimizer.zero_grad()
        gen_loss.backward()
        gen_optimizer.step()
        for p in critic.parameters():
            p.requires_grad_(True)
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"gorse_gan: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
