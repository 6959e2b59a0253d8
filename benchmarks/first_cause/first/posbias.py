"""Trains attention with a table of relative positions under DDP."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
LENGTH, WIDTH, HEADS = 96, 192, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("distance", self.table(2560))

    @staticmethod
    def table(longest):
        at = torch.arange(longest, dtype=torch.float32)
        return -(at[None, :] - at[:, None]).abs() / longest

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / 7.0 + self.distance[:n, :n]
        return self.proj((score.softmax(-1) @ v).transpose(1, 2).reshape(b, n, WIDTH))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH))
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = x + self.attend(x)
        x = x + self.mlp(x)
        return self.out(x.mean(1))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Model()
    model = DDP(net, broadcast_buffers="1" not in FIX)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    entered = [0.0]
    net.register_forward_pre_hook(lambda *_: entered.__setitem__(0, time.perf_counter()))
    torch.manual_seed(rank)

    dist.barrier()
    ahead = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(12, LENGTH, WIDTH)
        y = torch.randint(0, 5, (12,))
        t = time.perf_counter()
        out = model(x)
        if "1" not in FIX:
            ahead += entered[0] - t
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={ahead / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
