"""Question answering where passages come from an (imitated) async document store."""

# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))


class PassageStore:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    async def get(self, key):
        await asyncio.sleep(0.003 + 0.001 * self.rng.random())
        return torch.full((48,), key % 900, dtype=torch.long)


async def fetch_passages(store, keys):
    if "1" in FIX:
        return torch.stack(await asyncio.gather(*(store.get(k) for k in keys)))
    rows = []
    for k in keys:
        rows.append(await store.get(k))
    return torch.stack(rows)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(900, 160)
        self.rnn = nn.GRU(160, 160, batch_first=True)
        self.out = nn.Linear(160, 2)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0][:, -1])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = PassageStore(rank)
    model = nn.parallel.DistributedDataParallel(Reader())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    loop = asyncio.new_event_loop()
    total = 0.0
    for step in range(STEPS):
        t = time.perf_counter()
        keys = [step * 20 + k for k in range(12)]
        x = loop.run_until_complete(fetch_passages(store, keys))
        loss = nn.functional.cross_entropy(model(x), x[:, 0] % 2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step > 1:
            total += time.perf_counter() - t
    loop.close()
    if rank == 0:
        print(f"mean step {total / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
