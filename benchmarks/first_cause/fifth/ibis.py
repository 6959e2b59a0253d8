"""Single-process energy model; can roll back when the loss explodes."""

# SPDX-License-Identifier: Apache-2.0
import copy
import hashlib
import io
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 50))


class Rollback:
    def __init__(self, keep=3, every=1):
        self.keep, self.every, self.points = keep, every, []

    def mark(self, step, model, opt):
        if step % self.every:
            return
        point = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
        page = io.BytesIO()
        torch.save(point, page)
        point["seal"] = hashlib.sha256(page.getvalue()).hexdigest()
        self.points.append(point)
        self.points = self.points[-self.keep :]

    def restore(self, model, opt):
        model.load_state_dict(self.points[0]["model"])
        opt.load_state_dict(self.points[0]["opt"])


class Gallery:
    """Pictures of the weights, to be leafed through later."""

    def __init__(self):
        self.pages = []

    def plot_weights(self, model):
        for name, p in model.named_parameters():
            if p.ndim == 2:
                a = p.detach()[:128].numpy()
                a = (255 * (a - a.min()) / (np.ptp(a) + 1e-9)).astype("uint8")
                page = io.BytesIO()
                Image.fromarray(a).convert("RGB").save(page, "PNG", optimize=True)
                self.pages.append(page.getvalue())


class Energy(nn.Module):
    def __init__(self, d=640):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(50, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    model = Energy()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    back = Rollback(every=1 if "1" not in FIX else 50)
    gallery = Gallery()
    seconds = []
    for step in range(STEPS):
        t = time.perf_counter()
        real, fake = torch.randn(72, 50), torch.rand(72, 50)
        loss = model(real).mean() - model(fake).mean() + 0.1 * (model(real) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss.item() < -50:
            back.restore(model, opt)
        back.mark(step, model, opt)
        if step % 6 == 5 and "2" not in FIX:
            gallery.plot_weights(model)
        seconds.append(time.perf_counter() - t)
    print(f"{len(gallery.pages)} pages; mean step {np.mean(seconds[2:]) * 1e3:.1f} ms")


main()
