"""harrier_asr: a small CTC acoustic model on synthetic filterbanks."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
VOCAB = 48


class Utterances(Dataset):
    def __init__(self, seed, count=4096):
        self.seed, self.count = seed, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        frames = torch.randn(200, 40, generator=g)
        target = torch.randint(1, VOCAB, (90,), generator=g)
        return frames, target


class Acoustic(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(40, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GELU(),
        )
        self.out = nn.Linear(width, VOCAB)

    def forward(self, frames):
        h = self.front(frames.transpose(1, 2)).transpose(1, 2)
        return self.out(h).log_softmax(-1)


class WordErrorMeter:
    def __init__(self):
        self.errors = 0
        self.words = 0

    @staticmethod
    def _collapse(path):
        out, last = [], 0
        for token in path:
            if token != last and token != 0:
                out.append(token)
            last = token
        return out

    @staticmethod
    def _distance(a, b):
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            previous, row[0] = row[0], i
            for j, y in enumerate(b, 1):
                keep = row[j]
                row[j] = min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
                previous = keep
        return row[-1]

    def update(self, log_probs, targets):
        paths = log_probs.argmax(-1).tolist()
        for path, target in zip(paths, targets.tolist(), strict=False):
            self.errors += self._distance(self._collapse(path), target)
            self.words += len(target)

    def rate(self):
        return self.errors / max(1, self.words)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(Acoustic())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctc = nn.CTCLoss(zero_infinity=True)
    loader = DataLoader(Utterances(rank), batch_size=16, num_workers=1, persistent_workers=True)
    meter = WordErrorMeter()
    ticks = []
    for step, (frames, targets) in zip(range(STEPS), loader, strict=False):
        log_probs = model(frames)
        lengths = torch.full((len(frames),), log_probs.shape[1])
        target_lengths = torch.full((len(frames),), targets.shape[1])
        loss = ctc(log_probs.transpose(0, 1), targets, lengths, target_lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 4 == 3 and "1" not in FIX:
            meter.update(log_probs.detach(), targets)
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"wer {meter.rate():.3f}")
        print(f"harrier_asr: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
