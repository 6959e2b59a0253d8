"""Weather downscaling with a plain MLP, DDP."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = int(os.environ.get("STEPS", 50))
    torch.manual_seed(0)
    x = torch.randn(4096, 64)
    data = TensorDataset(x, x.cumsum(1)[:, ::8])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=192, sampler=sampler)
    model = DDP(
        nn.Sequential(
            nn.Linear(64, 480),
            nn.GELU(),
            nn.Linear(480, 480),
            nn.GELU(),
            nn.Linear(480, 480),
            nn.GELU(),
            nn.Linear(480, 8),
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    done, epoch, stamps = 0, 0, []
    while done < steps:
        sampler.set_epoch(epoch)
        for a, b in loader:
            loss = nn.functional.smooth_l1_loss(model(a), b)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            done += 1
            stamps.append(time.perf_counter())
            if done % 20 == 0 and dist.get_rank() == 0:
                print(f"step {done} loss {loss.item():.3f}")
            if done == steps:
                break
        epoch += 1
    if dist.get_rank() == 0:
        print(f"mean step {(stamps[-1] - stamps[1]) / (steps - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
