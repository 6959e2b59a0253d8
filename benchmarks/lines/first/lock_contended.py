"""Autoencoder. Rank 0 logs metrics through an object shared with a flusher thread."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "70"))


class MetricLog:
    """Rows wait in memory until the flusher thread ships them."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        self.rows = []
        self.waited = 0.0
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._flush_forever, daemon=True)
        self.thread.start()

    def add(self, step, loss):
        begin = time.perf_counter()
        with self.lock:  # <- here
            self.waited += time.perf_counter() - begin
            self.rows.append((step, loss))

    def _flush_forever(self):
        with open(self.path, "a") as out:
            while not self.closing.is_set():
                with self.lock:
                    for step, loss in self.rows:
                        out.write(f"{step}\t{loss:.5f}\n")
                    self.rows.clear()
                    out.flush()
                    self._ship(out)
                self.closing.wait(0.002)

    def _ship(self, out):
        time.sleep(0.09)  # a slow remote store  # <- holder

    def close(self):
        self.closing.set()
        self.thread.join()


class AutoEncoder(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, 64))
        self.dec = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, width))

    def forward(self, x):
        return self.dec(self.enc(x))


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.model = DistributedDataParallel(AutoEncoder())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.log = None
        if rank == 0:
            self.log = MetricLog(os.path.join(tempfile.mkdtemp(), "metrics.tsv"))

    def fit(self, loader):
        begin = time.perf_counter()
        for step, (x,) in enumerate(loader):
            loss = nn.functional.mse_loss(self.model(x), x)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if self.log is not None:
                self.log.add(step, loss.item())
        return time.perf_counter() - begin


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    loader = DataLoader(TensorDataset(torch.randn(192 * STEPS, 512)), batch_size=192)
    trainer = Trainer(rank)
    total = trainer.fit(loader)
    waited = trainer.log.waited if trainer.log else 0.0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * waited / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )
    if trainer.log:
        trainer.log.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
