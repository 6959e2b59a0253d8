"""Text classifier with a compiled pooling function; every batch has another length."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "50"))
BATCH = 16
torch._dynamo.config.recompile_limit = 100_000
torch._dynamo.config.accumulated_recompile_limit = 100_000


class Texts(Dataset):
    """Sorted by length, as many pipelines do: each batch is a little longer."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        return torch.randint(0, 4000, (20 + i // BATCH,), generator=gen), i % 6


def attention_pool(h, query):
    scores = (h * query).sum(-1)
    weights = torch.softmax(scores / h.shape[1] ** 0.5, dim=1)
    pooled = [(h * weights.unsqueeze(-1)).sum(1)]
    for power in range(2, 6):
        sharp = torch.softmax(scores * power, dim=1)
        pooled.append((h * sharp.unsqueeze(-1)).sum(1))
        pooled.append(torch.tanh(h.mean(1) * power))
    return torch.stack(pooled).mean(0)


fast_pool = torch.compile(attention_pool, backend="eager", dynamic=False)
CALLS = []


class Classifier(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.embed = nn.Embedding(4000, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.query = nn.Parameter(torch.randn(dim))
        self.head = nn.Linear(dim, 6)

    def forward(self, ids):
        h = self.embed(ids)
        h = h + self.mix(h)
        begin = time.perf_counter()
        pooled = fast_pool(h, self.query)  # <- here
        CALLS.append(time.perf_counter() - begin)
        return self.head(pooled)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Classifier())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Texts(BATCH * (STEPS + 1)), batch_size=BATCH)
    begin = time.perf_counter()
    for step, (ids, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 0:  # the first compile also imports the compiler: leave it out of the figures
            first, begin = time.perf_counter() - begin, time.perf_counter()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * sum(CALLS[1:]) / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} first_step_ms={1e3 * first:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
