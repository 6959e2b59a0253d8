"""Trains with gradient accumulation over four microbatches."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))
PARTS, ROWS, LENGTH, WIDTH = 4, 4, 32, 128


class Encoder(nn.Module):
    def __init__(self, layers=2, vocab=1000):
        super().__init__()
        self.embed = nn.Embedding(vocab, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, vocab)

    def forward(self, ids):
        return self.out(self.body(self.embed(ids)))


def accumulate(model, parts):
    """Gradients of all parts; the exchange happens with the last one only."""
    total = 0.0
    for i, ids in enumerate(parts):
        last = i == len(parts) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())
            (loss / len(parts)).backward()
        total += loss.detach()
    return total / len(parts)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        parts = torch.randint(0, 1000, (PARTS, ROWS, LENGTH))
        opt.zero_grad()
        accumulate(model, parts)
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
