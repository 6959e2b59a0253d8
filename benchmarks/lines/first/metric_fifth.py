"""Binary classifier; two metrics with the same methods, one costly every fifth step."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = int(os.environ.get("STEPS", "70"))
BATCH = 256


class Metric:
    def __init__(self, every):
        self.every = every
        self.scores, self.labels = [], []
        self.seconds = 0.0
        self.value = None

    def update(self, step, scores, labels):
        self.scores.extend(scores)
        self.labels.extend(labels)
        if step % self.every == self.every - 1:
            begin = time.perf_counter()
            self.value = self.compute()
            self.seconds += time.perf_counter() - begin
            self.scores.clear()
            self.labels.clear()


class Accuracy(Metric):
    def compute(self):
        hits = 0
        for score, label in zip(self.scores, self.labels, strict=False):
            if (score > 0) == (label == 1):
                hits += 1
        return hits / len(self.scores)


class PairwiseAUC(Metric):
    def compute(self):
        wins = pairs = 0
        for score, label in zip(self.scores, self.labels, strict=False):
            if label == 1:
                for other, mark in zip(self.scores, self.labels, strict=False):  # <- here
                    if mark == 0:  # <- here
                        pairs += 1  # <- here
                        wins += score > other  # <- here
        return wins / max(1, pairs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(300, 900), nn.ReLU(), nn.Linear(900, 600), nn.ReLU())
        self.out = nn.Linear(600, 1)

    def forward(self, x):
        return self.out(self.hidden(x)).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    x = torch.randn(BATCH * STEPS * world, 300)
    data = TensorDataset(x, (x[:, :5].sum(1) > 0).float())
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, world, rank))
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    accuracy, auc = Accuracy(5), PairwiseAUC(5)
    begin = time.perf_counter()
    for step, (xb, yb) in enumerate(loader):
        logits = model(xb)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        scores, labels = logits.tolist(), yb.tolist()
        accuracy.update(step, scores, labels)
        auc.update(step, scores, labels)
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * auc.seconds / STEPS:.1f} "
        f"step_ms={1e3 * total / STEPS:.1f} decoy_ms_per_step={1e3 * accuracy.seconds / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
