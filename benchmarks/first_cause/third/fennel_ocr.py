"""fennel_ocr: text-line recogniser on rendered lines, in short rounds."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import string
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
ROUND = 8
BATCH = 16
LETTERS = string.ascii_letters + string.digits


class GlyphBank:
    def __init__(self):
        self.glyphs = {}

    def warm(self, styles=12):
        font = ImageFont.load_default()
        for letter in LETTERS:
            for style in range(styles):
                image = Image.new("L", (40, 40))
                ImageDraw.Draw(image).text((12, 12), letter, fill=255, font=font)
                image = image.rotate(style - 6, Image.BICUBIC).filter(ImageFilter.GaussianBlur(0.4 + style / 10))
                self.glyphs[letter, style] = np.asarray(image.resize((16, 24)), np.float32) / 255
        return self


BANK = GlyphBank()


def start_worker(worker):
    random.seed(worker + 1000 * dist_rank())
    BANK.warm()


def dist_rank():
    return int(os.environ["RANK"])


class Lines(Dataset):
    def __len__(self):
        return ROUND * BATCH

    def __getitem__(self, i):
        text = random.choices(range(len(LETTERS)), k=10)
        line = np.concatenate([BANK.glyphs[LETTERS[t], random.randrange(12)] for t in text], 1)
        return torch.from_numpy(line)[None], torch.tensor(text)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 96, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((1, 10)),
        )
        self.rnn = nn.GRU(96, 96, batch_first=True, bidirectional=True)
        self.out = nn.Linear(192, len(LETTERS))

    def forward(self, x):
        h, _ = self.rnn(self.conv(x).squeeze(2).transpose(1, 2))
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(
        Lines(), batch_size=BATCH, num_workers=1, worker_init_fn=start_worker, persistent_workers="1" in FIX
    )
    ticks = []
    while len(ticks) < STEPS:
        for image, text in loader:
            loss = nn.functional.cross_entropy(model(image).flatten(0, 1), text.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ticks.append(time.perf_counter())
    if rank == 0:
        print(f"fennel_ocr: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
