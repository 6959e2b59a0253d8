"""Power-load forecasting with an LSTM, single process, saves its best weights at the end."""

# SPDX-License-Identifier: Apache-2.0
import math
import os
import tempfile
import time

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 45))


def series(n, length=48):
    phase = torch.rand(n, 1) * 2 * math.pi
    t = torch.arange(length + 1) / 6
    wave = torch.sin(t + phase) + 0.3 * torch.sin(3 * t + phase) + 0.05 * torch.randn(n, length + 1)
    return wave[:, :-1].unsqueeze(-1), wave[:, 1:]


class Forecaster(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).squeeze(-1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(4)
    net = Forecaster()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    best, ticks = float("inf"), [time.perf_counter()]
    for step in range(STEPS):
        x, y = series(24)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        best = min(best, loss.item())
        ticks.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as d:
        torch.save(net.state_dict(), os.path.join(d, "forecaster.pt"))
    print(f"best {best:.4f} mean step {(ticks[-1] - ticks[3]) / (len(ticks) - 4) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
