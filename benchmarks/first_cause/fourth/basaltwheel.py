"""Mill-load regression gathering its activations piece by piece and waiting for marker files."""

# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
PIECES = 40


class Depot:
    """An outside process would drop the marker; here a timer plays its part."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()

    def order(self, name):
        path = os.path.join(self.folder, name)
        threading.Timer(0.09, lambda: open(path, "w").close()).start()
        return path

    def await_marker(self, path):
        while not os.path.exists(path):
            time.sleep(0.005)
        os.unlink(path)


def collect(z, world):
    """All ranks see all embeddings, one row band after the other."""
    whole = []
    for band in z.chunk(PIECES):
        parts = [torch.empty_like(band) for _ in range(world)]
        dist.all_gather(parts, band.contiguous())
        whole.append(torch.cat(parts))
    return torch.cat(whole)


def collect_once(z, world):
    parts = [torch.empty_like(z) for _ in range(world)]
    dist.all_gather(parts, z.contiguous())
    return torch.cat(parts)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 64))
    ps = list(net.parameters())
    opt = torch.optim.SGD(ps, lr=0.01)
    depot = Depot()
    gather = collect_once if "2" in FIX else collect
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(240, 300)
        z = net(x)
        others = gather(z.detach(), world)
        loss = (z @ others.t()).square().mean()
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in ps])
        dist.all_reduce(flat)
        at = 0
        for p in ps:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p)).div_(world)
            at += p.numel()
        opt.step()
        if rank == 1 and step % 4 == 3 and "1" not in FIX:
            depot.await_marker(depot.order(f"m{step}"))
    dist.barrier()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    shutil.rmtree(depot.folder)
    dist.destroy_process_group()


main()
