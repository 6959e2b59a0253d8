"""quarrystone: rock texture classifier on a blob store, with a run tracker."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
import socketserver
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")


class TrackerHandler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            json.loads(line)
            time.sleep(0.018)
            self.wfile.write(b'{"status": "ok"}\n')


class TrackerClient:
    def __init__(self):
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), TrackerHandler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.socket = socket.create_connection(self.server.server_address)
        self.stream = self.socket.makefile("rw")
        self.backlog = []

    def log(self, **values):
        if "2" in FIX:
            self.backlog.append(values)
            return
        self.stream.write(json.dumps(values) + "\n")
        self.stream.flush()
        json.loads(self.stream.readline())

    def close(self):
        self.socket.close()
        self.server.shutdown()


class BlobStore:
    def get(self, key):
        time.sleep(0.0015)
        return np.random.default_rng(key).bytes(3 * 40 * 40)


class Rocks(Dataset):
    def __init__(self, offset):
        self.store, self.offset = BlobStore(), offset

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        pixels = np.frombuffer(self.store.get(self.offset + i), np.uint8).reshape(3, 40, 40)
        if i % 2:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.astype(np.float32) / 255), i % 14


def build():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 14),
    )


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    options = {"num_workers": 1, "prefetch_factor": 3} if "1" in FIX else {}
    loader = DataLoader(Rocks(rank * 100000), batch_size=16, shuffle=True, **options)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    tracker = TrackerClient() if rank == 0 else None
    ticks = []
    for step, (pixels, label) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(pixels), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if tracker:
            tracker.log(step=step, loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
        ticks.append(time.perf_counter())
    if tracker:
        tracker.close()
        print(f"quarrystone: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
