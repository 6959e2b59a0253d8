"""thistledown: sentence encoder trained on token-budgeted micro-batches."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
MICRO = 6
VOCAB = 500


class Sentences:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def micro(self):
        spread = torch.rand((), generator=self.g)
        length = int(8 + 150 * spread**3)
        return torch.randint(0, VOCAB, (8, length + 1), generator=self.g)


class Encoder(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        return self.out(self.layers(self.embed(tokens)))


class Trainer:
    def __init__(self, rank):
        self.model = DistributedDataParallel(Encoder())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.sentences = Sentences(rank)

    def micro_step(self):
        tokens = self.sentences.micro()
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        (loss / MICRO).backward()

    def settle(self):
        if "1" not in FIX:
            dist.barrier()

    def step(self):
        self.optimizer.zero_grad()
        with self.model.no_sync():
            for _ in range(MICRO - 1):
                self.micro_step()
                self.settle()
        self.micro_step()
        self.optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    trainer = Trainer(rank)
    ticks = []
    for _step in range(STEPS):
        trainer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"thistledown: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
