"""Music transformer with a long table of positions, DDP."""

# SPDX-License-Identifier: Apache-2.0
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "36"))
FIX = os.environ.get("FIX", "")


class Positions(nn.Module):
    def __init__(self, longest, dim):
        super().__init__()
        at = torch.arange(longest).unsqueeze(1)
        freq = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.zeros(longest, dim)
        table[:, 0::2] = torch.sin(at * freq)
        table[:, 1::2] = torch.cos(at * freq)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]


class Composer(nn.Module):
    def __init__(self, notes=388, dim=128):
        super().__init__()
        self.emb = nn.Embedding(notes, dim)
        self.pos = Positions(60000, dim)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 4, 256, dropout=0.0, batch_first=True), 2)
        self.out = nn.Linear(dim, notes)

    def forward(self, x):
        return self.out(self.blocks(self.pos(self.emb(x))))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = nn.parallel.DistributedDataParallel(Composer(), broadcast_buffers="1" not in FIX)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    stamps = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 388, (4, 65))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        stamps.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(f"mean step {(stamps[-1] - stamps[2]) / (STEPS - 3) * 1000:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
