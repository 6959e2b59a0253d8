"""birchbark: bark photographs, classified after strong augmentation."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))


class Augment:
    def __init__(self, side):
        self.side = side

    def __call__(self, image):
        scale = random.uniform(0.6, 1.0)
        edge = int(min(image.size) * scale)
        x, y = random.randint(0, image.width - edge), random.randint(0, image.height - edge)
        image = image.crop((x, y, x + edge, y + edge)).resize((self.side, self.side), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
        image = ImageEnhance.Brightness(image).enhance(random.uniform(0.7, 1.3))
        if random.random() < 0.3:
            image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 1.5)))
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


class Bark(Dataset):
    def __init__(self, count=2400, side=48):
        self.count = count
        self.augment = Augment(side)
        base = np.random.default_rng(1).integers(0, 256, (24, 10, 10, 3), np.uint8)
        self.photos = [Image.fromarray(b).resize((144, 144), Image.BICUBIC) for b in base]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.augment(self.photos[i % 24]), i % 24


def build(c=24):
    return nn.Sequential(
        nn.Conv2d(3, c, 3, 2, 1),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.Conv2d(c, 2 * c, 3, 2, 1),
        nn.BatchNorm2d(2 * c),
        nn.ReLU(),
        nn.Conv2d(2 * c, 4 * c, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * c, 24),
    )


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Bark()
    loader = DataLoader(
        data, batch_size=28, sampler=DistributedSampler(data), num_workers=1, persistent_workers=True, prefetch_factor=3
    )
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ticks = []
    for _step, (image, label) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(image), label, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"birchbark: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
