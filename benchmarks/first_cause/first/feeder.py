"""Trains a deep narrow network while a thread reads event lines."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
LINES = [json.dumps({"id": i, "kind": "view", "at": i * 0.25, "tags": ["a", "b"]}) for i in range(2000)]


class Events(threading.Thread):
    """Counts events by kind in the background."""

    def __init__(self, pause):
        super().__init__(daemon=True)
        self.pause = pause
        self.counts = {}
        self.running = True
        self.cpu = 0.0

    def count(self, line):
        text = ""
        for ch in line:
            text += ch if ch not in '{}"' else " "
        for part in text.split(","):
            key = part.split(":")[0].strip()
            self.counts[key] = self.counts.get(key, 0) + 1

    def run(self):
        while self.running:
            for line in LINES:
                self.count(line)
                if not self.running:
                    break
            self.cpu = time.thread_time()
            time.sleep(self.pause)


class Block(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.fc(self.norm(x)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[Block() for _ in range(12)], nn.Linear(192, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    reader = None
    if rank == 1 and "1" not in FIX:
        reader = Events(pause=0.012)

    dist.barrier()
    if reader:
        reader.start()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(448, 192)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    held = 0.0
    if reader:
        reader.running = False
        reader.join()
        held = reader.cpu
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={held / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
