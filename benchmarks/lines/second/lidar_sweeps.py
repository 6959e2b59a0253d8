"""Occupancy from lidar sweeps; the sweep index is kept fresh in the loader process."""

# SPDX-License-Identifier: Apache-2.0
import multiprocessing as mp
import os
import sys
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "50"))
WAITED = mp.get_context("fork").Value("d", 0.0)


class SweepIndex:
    """Maps sweep numbers to offsets; a helper thread pulls updates."""

    def __init__(self, size):
        self.offsets = np.arange(size) * 2048
        self.poses = np.eye(3, dtype=np.float32)
        self._index_lock = threading.Lock()
        self._pose_lock = threading.Lock()
        self._asked = threading.Semaphore(0)
        self._pulling = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        while True:
            self._asked.acquire()
            with self._index_lock:
                self._pulling.set()
                self._pull(0.045)
            with self._pose_lock:
                self._pull(0.0005)

    def _pull(self, seconds):
        time.sleep(seconds)
        self.offsets = np.roll(self.offsets, 1)

    def touch(self):
        self._pulling.clear()
        self._asked.release()
        self._pulling.wait()

    def pose(self):
        with self._pose_lock:
            return self.poses

    def offset(self, i):
        t0 = time.perf_counter()
        with self._index_lock:  # <- here
            waited = time.perf_counter() - t0
            at = int(self.offsets[i % len(self.offsets)])
        with WAITED.get_lock():
            WAITED.value += waited
        return at


class Sweeps(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed
        self.index = None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.index is None:
            self.index = SweepIndex(4096)
        if i % 8 == 0:
            self.index.touch()
        at = self.index.offset(i)  # <- also
        rng = np.random.default_rng(self.seed + at)
        points = rng.standard_normal((22_000, 3)).astype(np.float32) @ self.index.pose()
        grid, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=32, range=[[-3, 3]] * 2)
        return torch.from_numpy(grid).float().unsqueeze(0), torch.tensor(float(grid.max()))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(192, 1),
    )
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Sweeps(STEPS * 8, seed=rank), batch_size=8, num_workers=1)
    it = iter(loader)
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        grid, peak = next(it)
        loss = (model(grid / 50.0).squeeze(1) - peak / 50.0).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * WAITED.value / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
