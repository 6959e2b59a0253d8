"""Keyword spotting on ragged filterbank sequences."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "50"))
MELS = 40


class Utterances(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.seed * 100_003 + i)
        frames = int(torch.randint(90, 220, (1,), generator=gen))
        wave = torch.randn(frames * 160 + 400, generator=gen)
        spec = torch.stft(wave, 400, 160, window=torch.hann_window(400), return_complex=True).abs()
        return spec[:MELS].T.log1p().contiguous(), i % 12


class PadBatch:
    """Pads with zeros at the end."""

    def __call__(self, items):
        longest = max(len(f) for f, _ in items)
        out = torch.zeros(len(items), longest, MELS)
        for b, (feats, _) in enumerate(items):
            out[b, : len(feats)] = feats
        return out, torch.tensor([y for _, y in items])


class MirrorBatch:
    """Pads by walking back and forth over the utterance."""

    def __init__(self, clock):
        self.clock = clock

    def __call__(self, items):
        longest = max(len(f) for f, _ in items)
        out = torch.zeros(len(items), longest, MELS)
        t0 = time.perf_counter()
        for b, (feats, _) in enumerate(items):
            last = len(feats) - 1
            for t in range(longest):
                lap, at = divmod(t, last)  # <- here
                src = last - at if lap % 2 else at  # <- here
                out[b, t] = feats[src]  # <- here
        self.clock[0] += time.perf_counter() - t0
        return out, torch.tensor([y for _, y in items])


class Spotter(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.conv = nn.Conv1d(MELS, hidden, 5, stride=2)
        self.mix = nn.Conv1d(hidden, hidden, 5)
        self.out = nn.Linear(hidden, 12)

    def forward(self, x):
        x = torch.relu(self.conv(x.transpose(1, 2)))
        return self.out(torch.relu(self.mix(x)).amax(dim=2))


def loader_for(rank, clock):
    collate = MirrorBatch(clock) if rank == 0 else PadBatch()
    return DataLoader(Utterances(STEPS * 32, seed=rank), batch_size=32, num_workers=1, collate_fn=collate)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    clock = torch.zeros(1, dtype=torch.float64).share_memory_()
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Spotter())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = iter(loader_for(rank, clock))
    dist.barrier()
    durations = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        feats, labels = next(batches)
        loss = nn.functional.cross_entropy(model(feats), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        durations.append(time.perf_counter() - t0)
    if rank == 0:
        print(f"loss {loss.item():.3f} slowest {max(durations):.3f}s")
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * float(clock[0]) / STEPS:.1f} "
        f"step_ms={1e3 * sum(durations) / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
