"""Small translator trained with accumulated micro-batches, DDP."""

# SPDX-License-Identifier: Apache-2.0
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", 30))
ACCUM = 3


class Translator(nn.Module):
    def __init__(self, vocab=1500, d=96):
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.t = nn.Transformer(d, 4, 1, 1, 192, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(20), persistent=False)

    def forward(self, s, t):
        return self.out(self.t(self.src(s), self.tgt(t), tgt_mask=self.mask))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(Translator(), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    times = []
    for _ in range(STEPS):
        t0 = time.perf_counter()
        for m in range(ACCUM):
            s, t = torch.randint(0, 1500, (6, 24)), torch.randint(0, 1500, (6, 21))
            last = m == ACCUM - 1
            with nullcontext() if last else model.no_sync():
                out = model(s, t[:, :-1])
                (nn.functional.cross_entropy(out.transpose(1, 2), t[:, 1:]) / ACCUM).backward()
        opt.step()
        opt.zero_grad()
        times.append(time.perf_counter() - t0)
    if dist.get_rank() == 0:
        print(f"mean step {sum(times[2:]) / len(times[2:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


main()
