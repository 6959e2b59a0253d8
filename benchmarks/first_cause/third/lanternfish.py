"""lanternfish: plankton classifier reading its crops from a zip archive."""

# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import tempfile
import time
import zipfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
CROPS = 600


def write_archive(folder):
    path = os.path.join(folder, "crops.zip")
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for i in range(CROPS):
            z.writestr(f"crops/{i % 40:02d}/{i:06d}.raw", rng.bytes(48 * 48))
    return path


class CropArchive(Dataset):
    def __init__(self, path):
        self.path = path
        self.archive = None
        with zipfile.ZipFile(path) as z:
            self.names = z.namelist()

    def __len__(self):
        return len(self.names)

    def _read(self, name):
        if "1" in FIX:
            if self.archive is None:
                self.archive = zipfile.ZipFile(self.path)
            return self.archive.read(name)
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(name)

    def __getitem__(self, i):
        name = self.names[i]
        pixels = np.frombuffer(self._read(name), np.uint8).reshape(1, 48, 48)
        if np.random.rand() < 0.5:
            pixels = pixels[:, :, ::-1]
        return torch.from_numpy(pixels.astype(np.float32) / 255), int(name.split("/")[1])


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 96, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 40),
    )


def train(rank, path):
    data = CropArchive(path)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=12, sampler=sampler, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    ticks = []
    step = 0
    epoch = 0
    while step < STEPS:
        sampler.set_epoch(epoch)
        for pixels, label in loader:
            loss = loss_fn(model(pixels), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ticks.append(time.perf_counter())
            step += 1
            if step == STEPS:
                break
        epoch += 1
    if rank == 0:
        print(f"lanternfish: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    folder = tempfile.mkdtemp(prefix="lanternfish")
    try:
        train(rank, write_archive(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
