"""Train a small CNN to spot ships in synthetic radar chips."""

# SPDX-License-Identifier: Apache-2.0
import io
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", "50"))
SIDE = 48


class ChipNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 5, padding=2), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, 2)

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(x.mean(dim=(2, 3)))


class ContactSheet:
    """Keeps the latest maps of a layer as pictures for the dashboard."""

    def __init__(self, rows, cols):
        self.rows, self.cols = rows, cols
        self.latest = {}
        self.seconds = 0.0

    def __call__(self, module, args, output):
        grid = self._tile(output.detach()[: self.rows, : self.cols])
        self.latest["thumb"] = self._pack_thumb(grid)
        self.latest["sheet"] = self._pack(grid)  # <- also

    def _tile(self, maps):
        r, c, h, w = maps.shape
        flat = maps.permute(0, 2, 1, 3).reshape(r * h, c * w)
        flat = flat / flat.max().clamp_min(1e-6) * 255.0
        return Image.fromarray(flat.to(torch.uint8).numpy())

    def _pack_thumb(self, img):
        buf = io.BytesIO()
        small = img.resize((96, 96))
        small.save(buf, "PNG", optimize=True)
        return buf.getvalue()

    def _pack(self, img):
        buf = io.BytesIO()
        began = time.perf_counter()
        img.save(buf, "PNG", optimize=True)  # <- here
        self.seconds += time.perf_counter() - began
        return buf.getvalue()


def synth_chips(n, gen):
    x = torch.rand(n, 1, SIDE, SIDE, generator=gen) * 0.6
    y = torch.randint(0, 2, (n,), generator=gen)
    for i in torch.nonzero(y).flatten().tolist():
        r, c = torch.randint(4, SIDE - 12, (2,), generator=gen).tolist()
        x[i, 0, r : r + 4, c : c + 9] += 0.8
    return x, y


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(100 + rank)

    net = ChipNet()
    sheet = ContactSheet(rows=6, cols=8)
    net.stem.register_forward_hook(sheet)
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    dist.barrier()
    start = time.perf_counter()
    for step in range(STEPS):
        x, y = synth_chips(20, gen)
        loss = F.cross_entropy(model(x), y)  # <- also
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} sheet {len(sheet.latest['sheet'])}")
    total = time.perf_counter() - start
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * sheet.seconds / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
