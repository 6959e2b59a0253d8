"""Trains a detector head with augmentation and a running report."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
BATCH, SIDE = 28, 48


def elastic(image):
    """Shifts rows and columns of one image by smooth random offsets."""
    offsets = torch.randn(SIDE).cumsum(0).round().long().tolist()
    rows = []
    for y in range(SIDE):
        rows.append(image[:, y].roll(offsets[y], -1))
    image = torch.stack(rows, 1)
    cols = []
    for x in range(SIDE):
        cols.append(image[:, :, x].roll(offsets[x], -1))
    return torch.stack(cols, 2)


class Augment:
    def __init__(self, on):
        self.on = on
        self.seconds = 0.0

    def __call__(self, images):
        if self.on:
            t = time.perf_counter()
            images = torch.stack([elastic(image) for image in images])
            self.seconds += time.perf_counter() - t
        return images


class Report:
    """Running record of every box the head gave, kept as text."""

    def __init__(self, on):
        self.on = on
        self.text = ""
        self.seconds = 0.0

    def add(self, step, boxes):
        if not self.on:
            return
        t = time.perf_counter()
        rows = []
        for box in boxes.repeat(32, 1).tolist():
            rows.append({"step": step, "box": box, "area": box[2] * box[3]})
        self.text = json.dumps(rows, indent=1)
        self.seconds += time.perf_counter() - t


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    augment = Augment(on=rank == 1 and "1" not in FIX)
    report = Report(on=rank == 0 and "2" not in FIX)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 24 * 24, 128),
        nn.ReLU(),
        nn.Linear(128, 4),
    )
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        images, target = torch.rand(BATCH, 3, SIDE, SIDE), torch.rand(BATCH, 4)
        boxes = model(augment(images))
        loss = nn.functional.smooth_l1_loss(boxes, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        report.add(step, boxes.detach())
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} "
        f"planted1_ms={augment.seconds / STEPS * 1e3:.1f} "
        f"planted2_ms={report.seconds / STEPS * 1e3:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
