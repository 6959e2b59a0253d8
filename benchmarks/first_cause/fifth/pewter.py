"""Graph-compiled sequence tagger with batches cut to their own longest sentence."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch._dynamo
from torch import nn

torch.set_num_threads(1)
torch._dynamo.config.cache_size_limit = 400
FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))


class TaggerNet(nn.Module):
    def __init__(self, vocab=3000, d=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.out = nn.Linear(d, 17)

    def forward(self, tokens):
        h = self.emb(tokens)
        for lin, norm in zip(self.mix, self.norm):
            h = h + torch.nn.functional.gelu(lin(norm(h)))
        return self.out(h)


def batches(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    for k in range(n):
        longest = 60 + (k // 2 * 7) % 41
        tokens = torch.randint(1, 3000, (24, longest), generator=g)
        if "1" in FIX:
            tokens = nn.functional.pad(tokens, (0, 101 - longest))
        yield tokens


net = TaggerNet()
fast = torch.compile(net, backend="eager", dynamic=False)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
spent = []
for tokens in batches(STEPS):
    t = time.perf_counter()
    logits = fast(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), (tokens % 17).flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    spent.append(time.perf_counter() - t)
print(f"loss {loss.item():.3f} mean step {sum(spent[2:]) / len(spent[2:]) * 1000:.1f} ms")
