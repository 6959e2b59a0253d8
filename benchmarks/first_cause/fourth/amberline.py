"""Resin-flow surrogate with an in-memory log ring and a shared settings tree."""

# SPDX-License-Identifier: Apache-2.0
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))
log = logging.getLogger("amber")


class RingHandler(logging.Handler):
    """Keeps the last lines and joins them into one page for the dashboard."""

    def __init__(self, keep=14000):
        super().__init__()
        self.lines = [f"{i:05d} boot line of the amber press" for i in range(keep)]
        self.page = ""

    def emit(self, record):
        self.lines = self.lines[1:] + [self.format(record)]
        self.page = self.typeset()

    def typeset(self):
        return "\n".join(f"{n:>6} | {line.strip().capitalize():<60}|" for n, line in enumerate(self.lines))


def settings_tree(step):
    return {f"zone{z}": {f"knob{k}": (step * z + k) / 7 for k in range(40)} for z in range(700)}


def share_settings(rank, step):
    box = [settings_tree(step) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 1 and "1" not in FIX:
        log.addHandler(RingHandler())
    net = DDP(nn.Sequential(nn.Linear(200, 700), nn.SiLU(), nn.Linear(700, 700), nn.SiLU(), nn.Linear(700, 20)))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    fixed = settings_tree(0)
    t0 = time.perf_counter()
    for step in range(STEPS):
        tree = fixed if "2" in FIX else share_settings(rank, step)
        x = torch.randn(160, 200) * (1 + tree["zone1"]["knob1"] % 1)
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        log.info("step %d loss %.4f", step, loss.item())
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
