"""Compiled autoencoder on spectra, fixed shapes."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
from torch import nn

torch.set_num_threads(1)


class Codec(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 48))
        self.dec = nn.Sequential(nn.Linear(48, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, d))

    def forward(self, x):
        return self.dec(self.enc(x))


def main():
    codec = Codec()
    fast = torch.compile(codec, backend="aot_eager")
    opt = torch.optim.Adam(codec.parameters(), lr=1e-3)
    warm = torch.randn(256, 512)
    fast(warm).sum().backward()
    opt.zero_grad()
    steps = int(os.environ.get("STEPS", 50))
    start = time.perf_counter()
    for _ in range(steps):
        x = torch.randn(256, 512).cumsum(1) / 16
        loss = nn.functional.mse_loss(fast(x), x)
        loss.backward()
        opt.step()
        opt.zero_grad()
    print(f"loss {loss.item():.3f} mean step {(time.perf_counter() - start) / steps * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
