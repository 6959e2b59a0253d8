"""foxglove: character model trained through windows of a stream, hand-written cell."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"


class Stream:
    def __init__(self, seed, rows=72):
        self.random = random.Random(seed)
        self.rows = rows
        self.code = {c: i for i, c in enumerate(ALPHABET)}

    def window(self, length):
        text = ["".join(self.random.choices(ALPHABET, k=length + 1)) for _ in range(self.rows)]
        return torch.tensor([[self.code[c] for c in line] for line in text])


class GatedCell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gates = nn.Linear(2 * width, 2 * width)
        self.fresh = nn.Linear(2 * width, width)

    def forward(self, x, h):
        r, z = torch.sigmoid(self.gates(torch.cat([x, h], -1))).chunk(2, -1)
        n = torch.tanh(self.fresh(torch.cat([x, r * h], -1)))
        return z * h + (1 - z) * n


class CharModel(nn.Module):
    def __init__(self, width=144):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.cell = GatedCell(width)
        self.out = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens, h):
        states = []
        for x in self.embed(tokens).unbind(1):
            h = self.cell(x, h)
            states.append(h)
        return self.out(torch.stack(states, 1)), h


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(CharModel())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    stream = Stream(rank)
    state = torch.zeros(stream.rows, 144)
    lengths = random.Random(77 + rank)
    ticks = []
    for _step in range(STEPS):
        tokens = stream.window(lengths.randint(22, 30))
        logits, state = model(tokens[:, :-1], state.detach())
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"foxglove: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
