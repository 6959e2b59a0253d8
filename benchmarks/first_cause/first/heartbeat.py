"""Trains a policy network and journals every step."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
FLUSH = {0: 0.002, 1: 0.055, 2: 0.002}  # what a flush takes on the volume of each rank


class Journal:
    """Lines go to a list; a thread writes them out."""

    def __init__(self, rank):
        self.rank = rank
        self.lock = threading.Lock()
        self.some = threading.Event()
        self.lines = []
        self.file = tempfile.TemporaryFile("w")
        self.waited = 0.0
        self.thread = threading.Thread(target=self.drain, daemon=True)
        self.thread.start()

    def write(self, line):
        t = time.perf_counter()
        with self.lock:
            self.waited += time.perf_counter() - t
            self.lines.append(line)
        self.some.set()

    def flush(self, lines):
        self.file.writelines(lines)
        self.file.flush()
        time.sleep(FLUSH[self.rank])

    def drain(self):
        while True:
            self.some.wait()
            self.some.clear()
            if "1" in FIX:
                with self.lock:
                    lines, self.lines = self.lines, []
                self.flush(lines)
            else:
                with self.lock:
                    self.flush(self.lines)
                    self.lines = []


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh())
        self.act = nn.Linear(640, 6)

    def forward(self, x):
        return self.act(self.body(x))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Policy())
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    journal = Journal(rank)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(128, 64)
        logp = model(x).log_softmax(-1)
        action = torch.multinomial(logp.detach().exp(), 1)
        reward = (action.squeeze(1) == x[:, :6].argmax(-1)).float()
        loss = -(logp.gather(1, action).squeeze(1) * (reward - reward.mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        journal.write(f"{step} {reward.mean():.4f} {loss:.4f}\n")
    dist.barrier()
    took = time.perf_counter() - begin
    extra = journal.waited if rank == 1 and "1" not in FIX else 0.0
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={extra / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
