"""glasswing: learned room reverb in front of a sound-event detector."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
CLIPS = 12
CORPORA = (("studio", 16384), ("field", 16411))


class Corpus:
    def __init__(self, rank):
        self.name, self.samples = CORPORA[rank % len(CORPORA)]
        self.g = torch.Generator().manual_seed(rank)

    def batch(self):
        wave = torch.randn(CLIPS, self.samples, generator=self.g)
        label = torch.randint(0, 12, (CLIPS,), generator=self.g)
        return wave, label


class Reverb(nn.Module):
    def __init__(self, taps=2048):
        super().__init__()
        decay = torch.exp(-torch.arange(taps) / 300.0)
        self.response = nn.Parameter(torch.randn(taps) * decay * 0.1)

    def forward(self, wave):
        samples = wave.shape[-1]
        n = samples
        if "1" in FIX:
            n = -(-samples // 2048) * 2048
        spectrum = torch.fft.rfft(wave, n=n) * torch.fft.rfft(self.response, n=n)
        return wave + torch.fft.irfft(spectrum, n=n)[..., :samples]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.reverb = Reverb()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 24, 64, 16),
            nn.ReLU(),
            nn.Conv1d(24, 64, 9, 2),
            nn.ReLU(),
            nn.Conv1d(64, 96, 9, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(96, 12)

    def forward(self, wave):
        return self.head(self.conv(self.reverb(wave)[:, None]))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DistributedDataParallel(Detector())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    corpus = Corpus(rank)
    ticks = []
    for _step in range(STEPS):
        wave, label = corpus.batch()
        loss = nn.functional.cross_entropy(model(wave), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"glasswing: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
