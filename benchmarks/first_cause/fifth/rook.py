"""Digit recogniser with a loader worker, one process."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Digits(Dataset):
    def __init__(self, n):
        self.x = torch.randint(0, 255, (n, 1, 28, 28), dtype=torch.uint8)
        self.y = torch.randint(0, 10, (n,))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i].float() / 255, self.y[i]


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


if __name__ == "__main__":
    steps = int(os.environ.get("STEPS", 50))
    loader = DataLoader(Digits(steps * 48), batch_size=48, shuffle=True, num_workers=1)
    net = cnn()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    seen, right, t0 = 0, 0, time.perf_counter()
    for step, (x, y) in enumerate(loader):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (out.argmax(1) == y).sum().item()
        seen += len(y)
        if step == 1:
            t0 = time.perf_counter()
    print(f"accuracy {right / seen:.3f}, mean step {(time.perf_counter() - t0) / (steps - 2) * 1e3:.1f} ms")
