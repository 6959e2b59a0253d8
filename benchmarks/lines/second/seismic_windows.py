"""First-arrival picker on windows cut from a long recording on disk."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import tempfile
import time

import numpy as np
import seismic_windows_util as sw
import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))


class Picker(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.front = nn.Conv1d(1, channels, 15, stride=2, padding=7)
        self.middle = nn.Conv1d(channels, channels, 9, padding=4)
        self.back = nn.Conv1d(channels, channels, 9, padding=4)
        self.head = nn.Linear(channels, 1)

    def forward(self, x):
        h = torch.relu(self.front(x))
        h = torch.relu(self.middle(h))
        h = torch.relu(self.back(h))
        return self.head(h.amax(dim=2)).squeeze(1)


def to_batch(windows):
    x = torch.from_numpy(windows).unsqueeze(1)
    x = (x - x.mean(dim=2, keepdim=True)) / (x.std(dim=2, keepdim=True) + 1e-6)
    return x, x.abs().amax(dim=(1, 2))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="seismic_") as folder:
        path = sw.write_recording(os.path.join(folder, "trace.i16"), seed=rank)
        recording = sw.Recording(path)
        model = nn.parallel.DistributedDataParallel(Picker())
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        rng = np.random.default_rng(rank)
        dist.barrier()
        t0 = time.perf_counter()
        for step in range(STEPS):
            starts = rng.integers(0, recording.length - sw.WINDOW, 32)
            level = recording.loudness(starts)
            baseline = recording.background(starts)  # <- also
            x, peak = to_batch(recording.cut(starts) / baseline)
            loss = nn.functional.smooth_l1_loss(model(x), peak + 1e-6 * level)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and step % 25 == 0:
                print(f"step {step} loss {loss.item():.3f}")
        wall = time.perf_counter() - t0
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * recording.seconds / STEPS:.1f} "
        f"step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
