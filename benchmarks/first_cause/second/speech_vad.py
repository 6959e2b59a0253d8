"""Voice activity detector on raw waveforms."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
SR = 8000


class Reverb:
    """Convolves a wave with a decaying random room response."""

    def __init__(self, seconds, rng):
        n = int(SR * seconds)
        self.ir = (rng.standard_normal(n) * np.exp(-np.linspace(0, 6, n))).astype(np.float32)
        self.fft = "1" in FIX

    def apply(self, wave):
        n = len(wave)
        if self.fft:
            size = 1 << (n + len(self.ir) - 1).bit_length()
            return np.fft.irfft(np.fft.rfft(wave, size) * np.fft.rfft(self.ir, size), size)[:n].astype(np.float32)
        return np.convolve(wave, self.ir)[:n]


class Utterances(IterableDataset):
    def __init__(self, rank, batch):
        self.rank, self.batch = rank, batch

    def __iter__(self):
        rng = np.random.default_rng(self.rank)
        room = Reverb(0.7, rng)
        i = 0
        while True:
            waves = rng.standard_normal((self.batch, SR)).astype(np.float32)
            if i % 4 == 3:  # far-field batch
                c = time.perf_counter()
                waves = np.stack([room.apply(w) for w in waves])
                spent["reverb"] += time.perf_counter() - c
            label = (np.abs(waves).mean(1) > 0.8).astype(np.float32)
            yield torch.from_numpy(waves), torch.from_numpy(label)
            i += 1


class VAD(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(1, 48, 400, stride=80)
        self.body = nn.Sequential(nn.Conv1d(48, 96, 5), nn.ReLU(), nn.Conv1d(96, 96, 5), nn.ReLU())
        self.head = nn.Linear(96, 1)

    def forward(self, wave):
        h = torch.relu(self.front(wave[:, None]))
        return self.head(self.body(h).mean(-1)).squeeze(-1)


def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = iter(DataLoader(Utterances(rank, 12), batch_size=None))
    net = DistributedDataParallel(VAD())
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    times = []
    for _ in range(STEPS):
        tick = time.perf_counter()
        wave, label = next(loader)
        opt.zero_grad(set_to_none=True)
        loss_fn(net(wave), label).backward()
        opt.step()
        times.append(time.perf_counter() - tick)
    finish(times)


def finish(times):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(spent))
    if dist.get_rank() == 0:
        kept = times[5:]
        keys = sorted({k for e in everyone for k in e})
        body = {
            "step_ms": round(1e3 * sum(kept) / len(kept), 2),
            "per_step_ms": {k: [round(1e3 * e.get(k, 0.0) / len(times), 2) for e in everyone] for k in keys},
        }
        print("TRUTH " + json.dumps(body), flush=True)
    dist.barrier()
    dist.destroy_process_group()


train()
