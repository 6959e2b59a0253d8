"""Passenger-flow model; one rank asks a quota service before every update."""

# SPDX-License-Identifier: Apache-2.0
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", "40"))

SERVICE = """
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
print(s.getsockname()[1], flush=True)
c, _ = s.accept()
while True:
    q = c.recv(64)
    if not q: break
    time.sleep(0.018)
    c.sendall(b"ok\\n")
"""


class QuotaClient:
    def __init__(self):
        self.service = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
        port = int(self.service.stdout.readline())
        self.line = socket.create_connection(("127.0.0.1", port))

    def ask(self, step):
        self.line.sendall(b"may I %d" % step)
        return self.line.recv(16).startswith(b"ok")

    def close(self):
        self.line.close()
        self.service.wait()


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 128, batch_first=True)
        self.head = nn.Linear(128, 16)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = DDP(Flow())
    opt = torch.optim.Adagrad(net.parameters())
    quota = QuotaClient() if rank == 1 else None
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(32, 40, 16)
        opt.zero_grad()
        (net(x)[:, :-1] - x[:, 1:]).square().mean().backward()
        if quota and "1" not in FIX:
            quota.ask(step)
        opt.step()
    dist.barrier()
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    if quota:
        quota.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
