"""Image denoiser with an exponential average and a set of end-of-step callbacks."""

# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
spent = {"keep": 0.0}


class Denoiser(nn.Module):
    def __init__(self, side=24, width=1400):
        super().__init__()
        n = side * side
        self.encode = nn.Sequential(nn.Linear(n, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.decode = nn.Linear(width, n)

    def forward(self, x):
        return x - self.decode(self.encode(x))


class Average:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    def update(self, model):
        with torch.no_grad():
            for k, v in model.state_dict().items():
                self.shadow[k].lerp_(v, 1.0 - self.decay)


def average_callback(average, model):
    def on_step_end(step):
        average.update(model)

    return on_step_end


def progress_callback(folder, every):
    def on_step_end(step):
        if step % every == 0:
            torch.save({"step": step}, os.path.join(folder, "progress.pt"))

    return on_step_end


class HardBank:
    """The patches with the largest error so far, kept over restarts."""

    def __init__(self, size, n=576):
        self.patches = torch.zeros(size, n)
        self.at = 0

    def add(self, patch):
        self.patches[self.at % len(self.patches)] = patch
        self.at += 1


def keep_callback(folder, every, model, opt, average, bank):
    """Writes to the side and renames, so a reader never sees half a file."""

    def on_step_end(step):
        if step % every:
            return
        state = {
            "step": step,
            "model": model.state_dict(),
            "opt": opt.state_dict(),
            "average": average.shadow,
            "bank": bank.patches,
        }
        target = os.path.join(folder, "last.pt")
        t0 = time.perf_counter()
        torch.save(state, target + ".part")  # <- here
        spent["keep"] += time.perf_counter() - t0
        os.replace(target + ".part", target)

    return on_step_end


def noisy(gen, n):
    clean = torch.rand(n, 1, generator=gen) * torch.linspace(0, 1, 576)
    return clean + 0.3 * torch.randn(n, 576, generator=gen), clean


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Denoiser()
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    gen = torch.Generator().manual_seed(rank)
    folder = tempfile.mkdtemp(prefix="denoiser_")
    callbacks = []
    if rank == 0:
        average, bank = Average(net), HardBank(30_000)
        callbacks += [
            average_callback(average, net),
            progress_callback(folder, every=2),
            keep_callback(folder, 4, net, opt, average, bank),
        ]
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        x, clean = noisy(gen, 32)
        loss = nn.functional.mse_loss(model(x), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            bank.add(x[0])
        for on_step_end in callbacks:
            on_step_end(step)  # <- also
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent['keep'] / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
