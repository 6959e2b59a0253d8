"""Trains a recurrent tagger on sentences of varying length."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "40"))
BATCH, VOCAB, TAGS = 32, 3000, 17
SHORTEST, LONGEST = 16, 56


class Tagger(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 96)
        self.rnn = nn.GRU(96, width, batch_first=True)
        self.out = nn.Linear(width, TAGS)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.out(h)


class Sentences:
    """Batches bucketed by length; every rank follows the same plan of lengths."""

    def __init__(self, rank, seed=11):
        self.lengths = random.Random(seed)
        self.gen = torch.Generator().manual_seed(rank)

    def batch(self):
        length = self.lengths.randint(SHORTEST, LONGEST)
        ids = torch.randint(0, VOCAB, (BATCH, length), generator=self.gen)
        return ids, ids % TAGS


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sentences = Sentences(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        ids, tags = sentences.batch()
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms=0.0\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
