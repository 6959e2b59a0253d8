"""Next-click model over packed log blocks, unpacked as an async stream."""

# SPDX-License-Identifier: Apache-2.0
import asyncio
import bz2
import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
ITEMS, WINDOW, BATCH = 500, 16, 256


class Codec:
    seconds = 0.0

    @classmethod
    def open_archive(cls, blob):
        t0 = time.perf_counter()
        raw = bz2.decompress(blob)  # <- here
        cls.seconds += time.perf_counter() - t0
        return np.frombuffer(raw, dtype=np.int16)

    @classmethod
    def open_recent(cls, blob):
        return np.frombuffer(zlib.decompress(blob), dtype=np.int16)


def make_blocks(count, archived, seed):
    rng = np.random.default_rng(seed)
    size = 500_000 if archived else BATCH * (WINDOW + 1)
    pack = bz2.compress if archived else zlib.compress
    steps = rng.integers(0, 2, (count, size), dtype=np.int16)
    blocks = (np.cumsum(steps, axis=1) % ITEMS).astype(np.int16)
    return [pack(b.tobytes()) for b in blocks]


class LogStream:
    def __init__(self, blocks, opener):
        self.blocks, self.opener = blocks, opener
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="unpack")

    async def opened(self):
        loop = asyncio.get_running_loop()
        at = 0
        while True:
            blob = self.blocks[at % len(self.blocks)]
            yield await loop.run_in_executor(self.pool, self.opener, blob)  # <- also
            at += 1

    async def batches(self):
        async for clicks in self.opened():  # <- also
            need = BATCH * (WINDOW + 1)
            yield torch.from_numpy(clicks[:need].astype(np.int64)).view(BATCH, WINDOW + 1)


class ClickModel(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(ITEMS, dim)
        self.net = nn.Sequential(
            nn.Linear(dim * WINDOW, 640), nn.ReLU(), nn.Linear(640, 512), nn.ReLU(), nn.Linear(512, ITEMS)
        )

    def forward(self, ids):
        return self.net(self.emb(ids).flatten(1))


async def fit(model, opt, stream, rank):
    done = 0
    async for ids in stream.batches():  # <- also
        loss = nn.functional.cross_entropy(model(ids[:, :-1]), ids[:, -1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        done += 1
        if rank == 0 and done % 20 == 0:
            print(f"{done} loss {loss.item():.3f}")
        if done == STEPS:
            break


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    archived = rank == 0
    blocks = make_blocks(3 if archived else 8, archived, seed=rank)
    stream = LogStream(blocks, Codec.open_archive if archived else Codec.open_recent)
    model = nn.parallel.DistributedDataParallel(ClickModel())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    dist.barrier()
    t0 = time.perf_counter()
    asyncio.run(fit(model, opt, stream, rank))  # <- also
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * Codec.seconds / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
