"""Adversarial training of a little texture generator on two ranks."""

# SPDX-License-Identifier: Apache-2.0
import io
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from PIL import Image, ImageDraw

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 40))


class Lipschitz:
    """Pre-hook that keeps a layer's largest singular value at one."""

    def __init__(self):
        self.u = None

    def __call__(self, layer, inputs):
        w = layer.weight.data
        if "1" in FIX:
            if self.u is None:
                self.u = torch.randn(w.shape[0])
            v = nn.functional.normalize(w.T @ self.u, dim=0)
            self.u = nn.functional.normalize(w @ v, dim=0)
            top = self.u @ w @ v
        else:
            top = torch.linalg.svdvals(w)[0]
        w.div_(top.clamp(min=1.0))


def critic():
    net = nn.Sequential(
        nn.Linear(768, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
    )
    for m in net:
        if isinstance(m, nn.Linear):
            m.register_forward_pre_hook(Lipschitz())
    return net


def save_sheet(images, frame):
    """A contact sheet with captions, as PNG."""
    sheet = Image.new("RGB", (480, 480))
    draw = ImageDraw.Draw(sheet)
    for k, img in enumerate(images[:64]):
        a = ((img.reshape(16, 16, 3).numpy() + 1) * 127).clip(0, 255).astype(np.uint8)
        at = (60 * (k % 8), 60 * (k // 8))
        sheet.paste(Image.fromarray(a).resize((56, 48), Image.LANCZOS), at)
        draw.text((at[0], at[1] + 48), f"{frame}.{k}", fill=(255, 255, 0))
    out = io.BytesIO()
    sheet.save(out, "PNG", optimize=True)
    return out.getvalue()


def train():
    rank = dist.get_rank()
    torch.manual_seed(rank)
    gen = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 768), nn.Tanh())
    )
    cri = nn.parallel.DistributedDataParallel(critic(), broadcast_buffers=False)
    og, oc = torch.optim.Adam(gen.parameters(), 2e-4), torch.optim.Adam(cri.parameters(), 2e-4)
    album, clock = [], []
    for step in range(STEPS):
        real = torch.rand(64, 768) * 2 - 1
        fake = gen(torch.randn(64, 32))
        lc = cri(torch.cat([fake.detach(), real]))
        lc = lc[:64].mean() - lc[64:].mean()
        oc.zero_grad()
        lc.backward()
        oc.step()
        lg = -cri(fake).mean()
        og.zero_grad()
        lg.backward()
        og.step()
        if rank == 1 and step % 14 == 4 and "2" not in FIX:
            album.append(save_sheet(fake.detach(), step))
        clock.append(time.perf_counter())
    if rank == 0:
        print(f"critic {lc.item():.3f} mean step {(clock[-1] - clock[1]) / (STEPS - 2) * 1e3:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
