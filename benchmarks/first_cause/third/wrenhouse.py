"""wrenhouse: off-policy critic with a replay memory that is spilled to disk."""

# SPDX-License-Identifier: Apache-2.0
import os
import pickle
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
RATE = 6e6


class ReplayMemory:
    def __init__(self, seed, rows=4000, spill=False):
        self.g = torch.Generator().manual_seed(seed)
        self.data = torch.randn(rows, 24, generator=self.g)
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        self.thread = threading.Thread(target=self._keep_spilling, daemon=True) if spill else None
        if self.thread:
            self.thread.start()

    def _write(self, blob):
        for at in range(0, len(blob), 1 << 16):
            piece = blob[at : at + (1 << 16)]
            self.file.write(piece)
            time.sleep(len(piece) / RATE)

    def _spill(self):
        self.file.seek(0)
        if "1" in FIX:
            with self.lock:
                rows = self.data.clone()
            self._write(pickle.dumps(rows.numpy()))
        else:
            with self.lock:
                self._write(pickle.dumps(self.data.numpy()))

    def _keep_spilling(self):
        while not self.closed.wait(0.05):
            self._spill()

    def sample(self, count):
        with self.lock:
            rows = torch.randint(0, len(self.data), (count,), generator=self.g)
            return self.data[rows]

    def push(self, rows):
        with self.lock:
            self.data = torch.cat([self.data[len(rows) :], rows])

    def close(self):
        self.closed.set()
        if self.thread:
            self.thread.join()


class Critic(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.q = nn.Sequential(
            nn.Linear(22, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.q(x).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    memory = ReplayMemory(rank, spill=rank == world - 1)
    model = DistributedDataParallel(Critic())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    ticks = []
    for _step in range(STEPS):
        rows = memory.sample(1400)
        loss = nn.functional.smooth_l1_loss(model(rows[:, :22]), rows[:, 22] + 0.9 * rows[:, 23])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.push(rows[:32] + 0.01)
        ticks.append(time.perf_counter())
    memory.close()
    if rank == 0:
        print(f"wrenhouse: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
