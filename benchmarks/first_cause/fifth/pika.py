"""Character-level language model under fully sharded data parallelism."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

STEPS = int(os.environ.get("STEPS", 36))


class Layer(nn.Module):
    def __init__(self, d=128, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(d, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class CharLM(nn.Module):
    def __init__(self, vocab=96, d=128, depth=2, ctx=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(depth))
        self.head = nn.Linear(d, vocab)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for l in self.layers:
            x = l(x)
        return self.head(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = CharLM()
    for l in model.layers:
        fully_shard(l)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(100 + rank)
    text = torch.randint(0, 96, (200000,), generator=g)
    ends = []
    for _ in range(STEPS):
        at = torch.randint(0, len(text) - 65, (6,), generator=g)
        block = torch.stack([text[a : a + 65] for a in at])
        logits = model(block[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        ends.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(ends[-1] - ends[1]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
