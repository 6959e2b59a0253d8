"""Four workers training a keyword spotter; weights are re-sent so that nobody drifts."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 30))


class Tape:
    """Sixteen-bit tape recordings, some of them delta coded."""

    def __init__(self, rank):
        rng = np.random.default_rng(rank)
        self.coded = rank == 3 and "2" not in FIX
        self.clips = rng.integers(-50, 50, (40, 2100)).astype(np.int64)

    def decode(self, clip):
        if not self.coded:
            return np.cumsum(clip)
        level, out = 0, []
        for d in clip:
            level = max(-32768, min(32767, level + int(d)))
            out.append(level)
        return np.array(out)

    def batch(self, step, n=12):
        rows = [self.decode(self.clips[(step * n + k) % 40]) for k in range(n)]
        return torch.from_numpy(np.stack(rows)[:, ::3]).float() / 300, torch.arange(n) % 6


def sync_weights(model, opt):
    for p in model.parameters():
        dist.broadcast(p.data, 0)
        for state in opt.state[p].values():
            if torch.is_tensor(state):
                dist.broadcast(state, 0)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(700, 640),
        nn.ReLU(),
        *[m for _ in range(3) for m in (nn.Linear(640, 640), nn.ReLU())],
        nn.Linear(640, 6),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if "1" in FIX:
        sync_weights(model, opt)
    tape, ends = Tape(rank), []
    for step in range(STEPS):
        if "1" not in FIX:
            sync_weights(model, opt)
        x, y = tape.batch(step)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in model.parameters()])
        dist.all_reduce(flat)
        at = 0
        for p in model.parameters():
            p.grad.copy_(flat[at : at + p.numel()].view_as(p) / world)
            at += p.numel()
        opt.step()
        ends.append(time.perf_counter())
    if rank == 0:
        print(f"mean step {(ends[-1] - ends[1]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
