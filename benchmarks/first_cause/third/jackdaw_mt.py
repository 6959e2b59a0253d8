"""jackdaw_mt: toy translation model over length-sorted shards."""

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
FIX = os.environ.get("FIX", "")
VOCAB = 400
BATCH = 16


class Corpus:
    def __init__(self, count=6000):
        g = torch.Generator().manual_seed(21)
        self.length = 12 + (64 * torch.rand(count, generator=g) ** 2).long()
        self.g = g

    def shard(self, rank, world):
        order = self.length.argsort()
        if "2" in FIX:
            return self.length[order[rank::world]]
        return self.length[order.chunk(world)[rank]]


class ShardReader:
    def __init__(self, lengths, seed):
        self.lengths = lengths
        self.g = torch.Generator().manual_seed(seed)
        self.order = torch.Generator().manual_seed(13)

    def batch(self):
        start = int(torch.randint(0, len(self.lengths) - BATCH, (), generator=self.order))
        picked = self.lengths[start : start + BATCH]
        longest = int(picked.max())
        tokens = torch.randint(1, VOCAB, (BATCH, longest), generator=self.g)
        tokens[torch.arange(longest)[None] >= picked[:, None]] = 0
        return tokens


class Translator(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        return self.out(self.enc(self.embed(tokens)))


class Samples:
    def __init__(self):
        self.kept = []

    def share(self, step, tokens, logits):
        best = logits.argmax(-1)
        entries = []
        for source, hypothesis, score in zip(tokens.tolist(), best.tolist(), logits.tolist(), strict=False):
            entries.append(
                {"step": step, "source": source, "hypothesis": hypothesis, "scores": [row[:80] for row in score]}
            )
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, entries)
        self.kept = everyone[0][:4]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    reader = ShardReader(Corpus().shard(rank, world), rank)
    model = DistributedDataParallel(Translator())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples()
    ticks = []
    for step in range(STEPS):
        tokens = reader.batch()
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "1" not in FIX:
            samples.share(step, tokens[:4], logits[:4].detach())
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"jackdaw_mt: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
