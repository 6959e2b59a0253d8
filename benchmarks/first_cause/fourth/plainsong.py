"""Chant pitch regression, plain data-parallel perceptron."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = DDP(
        nn.Sequential(
            nn.Linear(256, 768),
            nn.GELU(),
            nn.Linear(768, 768),
            nn.GELU(),
            nn.Linear(768, 768),
            nn.GELU(),
            nn.Linear(768, 1),
        )
    )
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    t0 = time.perf_counter()
    for _ in range(STEPS):
        x = torch.randn(224, 256)
        opt.zero_grad()
        nn.functional.mse_loss(net(x).squeeze(1), x.mean(1)).backward()
        opt.step()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
