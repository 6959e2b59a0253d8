"""Trains a two-tower ranker on synthetic click pairs with DDP."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
EVAL_EVERY = 5


class Tower(nn.Module):
    def __init__(self, width=512, depth=2):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Linear(width, 64))

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=-1)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = Tower()
        self.item = Tower()

    def forward(self, q, d):
        return (self.query(q) * self.item(d)).sum(-1) * 5.0


def auc(scores, labels):
    """Area under the ROC curve by ranks, averaged over four cuts."""
    total = 0.0
    for cut in range(4):
        pairs = sorted(zip(scores[cut::2], labels[cut::2]))
        positives = sum(labels[cut::2])
        rank_sum = 0
        for i, pair in enumerate(pairs):
            rank_sum += i * pair[1]
        negatives = len(pairs) - positives
        total += (rank_sum - positives * (positives - 1) / 2) / max(positives * negatives, 1)
    return total / 4


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Ranker())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    holdout_scores = torch.rand(60000).tolist()
    holdout_labels = torch.randint(0, 2, (60000,)).tolist()

    dist.barrier()
    evaluating = 0.0
    begin = time.perf_counter()
    for step in range(STEPS):
        q, d = torch.randn(128, 512), torch.randn(128, 512)
        y = torch.randint(0, 2, (128,)).float()
        opt.zero_grad()
        loss = loss_fn(model(q, d), y)
        loss.backward()
        opt.step()
        if step % EVAL_EVERY == EVAL_EVERY - 1 and rank == 0 and "1" not in FIX:
            t = time.perf_counter()
            auc(holdout_scores, holdout_labels)
            evaluating += time.perf_counter() - t
    dist.barrier()
    took = time.perf_counter() - begin
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={evaluating / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
