"""avocet_lm: causal language model on sentences of mixed length."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
VOCAB = 600


class Sentences:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, rows=8):
        lengths = torch.randint(40, 73, (rows,), generator=self.g)
        tokens = torch.randint(1, VOCAB, (rows, int(lengths.max()) + 1), generator=self.g)
        tokens[torch.arange(tokens.shape[1])[None] > lengths[:, None]] = 0
        return tokens


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self, width=160, depth=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=0)
        self.place = nn.Parameter(torch.zeros(80, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        return self.out(self.blocks(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(LM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    sentences = Sentences(rank)
    ticks = []
    for _step in range(STEPS):
        tokens = sentences.batch()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"avocet_lm: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
