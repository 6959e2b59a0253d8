"""Two-tower recommender whose item table lives in another process."""

# SPDX-License-Identifier: Apache-2.0
import multiprocessing as mp
import os
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
ITEMS, DIM, BATCH = 2000, 48, 512


def table_server(conn):
    torch.set_num_threads(1)
    table = torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(0))
    while True:
        head = conn.recv(4, socket.MSG_WAITALL)
        if not head:
            return
        (n,) = struct.unpack("!I", head)
        ids = torch.frombuffer(bytearray(conn.recv(8 * n, socket.MSG_WAITALL)), dtype=torch.int64)
        body = table[ids].numpy().tobytes()
        conn.sendall(struct.pack("!I", len(body)))
        half = len(body) // 2
        for part in (body[:half], body[half:]):
            time.sleep(0.018)  # rate limit of the table service
            conn.sendall(part)


class TableClient:
    def __init__(self, conn):
        self.conn = conn
        self.stalled = 0.0

    def _read_head(self):
        return struct.unpack("!I", self.conn.recv(4, socket.MSG_WAITALL))[0]

    def _read_body(self, size):
        parts = bytearray()
        while len(parts) < size:
            t0 = time.perf_counter()
            chunk = self.conn.recv(min(65536, size - len(parts)))  # <- here
            self.stalled += time.perf_counter() - t0
            if not chunk:
                raise ConnectionError("table server went away")
            parts += chunk
        return parts

    def fetch(self, ids):
        self.conn.sendall(struct.pack("!I", ids.numel()) + ids.numpy().tobytes())
        body = self._read_body(self._read_head())  # <- also
        return torch.frombuffer(body, dtype=torch.float32).view(-1, DIM)


class RemoteTable(nn.Module):
    def __init__(self, client):
        super().__init__()
        self.client = client

    def forward(self, ids):
        return self.client.fetch(ids)  # <- also


class TwoTower(nn.Module):
    def __init__(self, client):
        super().__init__()
        self.items = RemoteTable(client)
        self.users = nn.Embedding(5000, DIM)
        self.item_tower = nn.Sequential(nn.Linear(DIM, 640), nn.ReLU(), nn.Linear(640, 256))
        self.user_tower = nn.Sequential(nn.Linear(DIM, 640), nn.ReLU(), nn.Linear(640, 256))

    def forward(self, users, items):
        u = self.user_tower(self.users(users))
        v = self.item_tower(self.items(items))  # <- also
        return u @ v.T


def main():
    ours, theirs = socket.socketpair()
    mp.get_context("fork").Process(target=table_server, args=(theirs,), daemon=True).start()
    theirs.close()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    client = TableClient(ours)
    model = nn.parallel.DistributedDataParallel(TwoTower(client))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(rank)
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        users = torch.randint(0, 5000, (BATCH,), generator=gen)
        items = torch.randint(0, ITEMS, (BATCH,), generator=gen)
        loss = nn.functional.cross_entropy(model(users, items), torch.arange(BATCH))  # <- also
        opt.zero_grad()
        loss.backward()
        opt.step()
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * client.stalled / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
