"""ambergris: variational autoencoder for spectra, with figures of the reconstructions."""

# SPDX-License-Identifier: Apache-2.0
import io
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
BINS = 512


class Reports:
    def __init__(self, every=10):
        self.every = every
        self.pages = []

    def due(self, step):
        return step % self.every == self.every - 1 and "1" not in FIX

    def render(self, step, spectra, rebuilt):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(2, 3, figsize=(9, 5), dpi=90)
        for axis, a, b in zip(axes.flat, spectra, rebuilt, strict=False):
            axis.plot(a.numpy(), lw=0.7)
            axis.plot(b.numpy(), lw=0.7)
            axis.set_title(f"step {step}")
        page = io.BytesIO()
        figure.savefig(page, format="png")
        pyplot.close(figure)
        self.pages.append(page.getvalue())


class SpectraVAE(nn.Module):
    def __init__(self, width=640, latent=24):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(BINS, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 2 * latent)
        )
        self.dec = nn.Sequential(
            nn.Linear(latent, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, BINS)
        )

    def forward(self, x):
        mean, logvar = self.enc(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
        return self.dec(z), kl


def spectra(generator, rows=256):
    grid = torch.linspace(0, 1, BINS)
    centre = torch.rand(rows, 1, generator=generator)
    width = 0.01 + 0.05 * torch.rand(rows, 1, generator=generator)
    return torch.exp(-(((grid - centre) / width) ** 2)) + 0.02 * torch.randn(rows, BINS, generator=generator)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    model = DistributedDataParallel(SpectraVAE())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    reports = Reports()
    ticks = []
    for step in range(STEPS):
        x = spectra(generator)
        rebuilt, kl = model(x)
        loss = (rebuilt - x).square().sum(-1).mean() + 0.1 * kl
        optimizer.zero_grad()
        loss.backward()
        if rank == 0 and reports.due(step):
            reports.render(step, x[:6], rebuilt[:6].detach())
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"ambergris: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
