"""Ranking model that reads its features from several shard servers at once."""

# SPDX-License-Identifier: Apache-2.0
import asyncio
import multiprocessing as mp
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
SHARDS = 4
ROW = 32 * 4


def serve(path, laggard):
    async def handle(reader, writer):
        gen = torch.Generator().manual_seed(1)
        while True:
            head = await reader.readline()
            if not head:
                return
            shard, rows = map(int, head.split())
            await asyncio.sleep(0.042 if shard == laggard else 0.001)
            writer.write(torch.randn(rows, 32, generator=gen).numpy().tobytes())
            await writer.drain()

    async def forever():
        async with await asyncio.start_unix_server(handle, path, limit=1 << 20) as server:
            await server.serve_forever()

    torch.set_num_threads(1)
    asyncio.run(forever())


class ShardClient:
    def __init__(self, shard):
        self.shard = shard
        self.last = 0.0

    async def connect(self, path):
        self.reader, self.writer = await asyncio.open_unix_connection(path, limit=1 << 20)
        return self

    async def ping(self):
        await asyncio.sleep(0)
        return self.writer.is_closing()

    async def _receive(self, size):
        t0 = time.perf_counter()
        body = await self.reader.readexactly(size)  # <- here
        self.last = time.perf_counter() - t0
        return body

    async def rows(self, n):
        self.writer.write(b"%d %d\n" % (self.shard, n))
        body = await asyncio.wait_for(self._receive(n * ROW), timeout=5.0)  # <- also
        return torch.frombuffer(bytearray(body), dtype=torch.float32).view(n, 32)


async def gather_rows(clients, n):
    await asyncio.gather(*(c.ping() for c in clients))
    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(c.rows(n)) for c in clients]
    return torch.cat([j.result() for j in jobs], dim=1)


async def open_all(path):
    while not os.path.exists(path):
        await asyncio.sleep(0.02)
    return [await ShardClient(s).connect(path) for s in range(SHARDS)]


def main():
    path = os.path.join(tempfile.mkdtemp(), "shards.sock")
    mp.get_context("fork").Process(target=serve, args=(path, 2), daemon=True).start()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Linear(32 * SHARDS, 640),
            nn.ReLU(),
            nn.Linear(640, 640),
            nn.ReLU(),
            nn.Linear(640, 640),
            nn.ReLU(),
            nn.Linear(640, 1),
        )
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    planted = 0.0
    with asyncio.Runner() as runner:
        clients = runner.run(open_all(path))
        dist.barrier()
        t0 = time.perf_counter()
        for step in range(STEPS):
            x = runner.run(gather_rows(clients, 352))  # <- also
            planted += max(c.last for c in clients)
            loss = nn.functional.softplus(-model(x).squeeze(1) * x[:, 0].sign()).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * planted / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
