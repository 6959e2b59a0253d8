"""saltmarsh: spectral surrogate for a shallow-water solver."""

# SPDX-License-Identifier: Apache-2.0
import inspect
import os
import sys
import time
from collections import deque

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")


class EventLog:
    def __init__(self, rank, keep=500):
        self.rank = rank
        self.lines = deque(maxlen=keep)

    def _origin(self):
        if "1" in FIX:
            frame = sys._getframe(2)
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        caller = inspect.stack()[2]
        return f"{os.path.basename(caller.filename)}:{caller.lineno}"

    def emit(self, text, **fields):
        pairs = " ".join(f"{k}={v:.4g}" for k, v in fields.items())
        self.lines.append(f"[{self.rank}] {self._origin()} {text} {pairs}")


class SpectralLayer(nn.Module):
    def __init__(self, width, modes, log):
        super().__init__()
        self.modes, self.log = modes, log
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, 2) / width)
        self.skip = nn.Conv2d(width, width, 1)

    def forward(self, x):
        f = torch.fft.rfft2(x)
        m = self.modes
        out = torch.zeros_like(f)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", f[..., :m, :m], torch.view_as_complex(self.weight))
        y = torch.fft.irfft2(out, s=x.shape[-2:])
        s = self.skip(x)
        self.log.emit("spectral", peak=float(y.detach().abs().max()))
        self.log.emit("skip", peak=float(s.detach().abs().max()))
        out = torch.nn.functional.gelu(y + s)
        self.log.emit("layer", mean=float(out.detach().mean()))
        return out


class Surrogate(nn.Module):
    def __init__(self, log, width=24):
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.layers = nn.ModuleList(SpectralLayer(width, 10, log) for _ in range(3))
        self.drop = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        h = self.lift(x)
        for layer in self.layers:
            h = layer(h)
        return x + self.drop(h)


def sync_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=False):
        g.copy_(piece.view_as(g))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    log = EventLog(rank)
    model = Surrogate(log)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    ticks = []
    for step in range(STEPS):
        state = torch.randn(4, 3, 48, 48, generator=g)
        loss = (model(state) - state.roll(1, -1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model)
        log.emit("step", step=step, loss=loss.item())
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(log.lines[-1])
        print(f"saltmarsh: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
