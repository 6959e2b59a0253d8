"""Preference reward model that ships its scores to a dashboard in the background."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))


class Shipper(threading.Thread):
    """Packs what the training loop hands over, so that the loop need not."""

    def __init__(self):
        super().__init__(name="shipper", daemon=True)
        self.inbox = queue.SimpleQueue()
        self.sent = 0
        self.packing = 0.0

    def run(self):
        while (item := self.inbox.get()) is not None:
            kind, payload = item
            if kind == "note":
                self.sent += len(json.dumps(payload))
                continue
            t0 = time.perf_counter()
            text = json.dumps(payload)  # <- here
            self.packing += time.perf_counter() - t0
            self.sent += len(text)

    def close(self):
        self.inbox.put(None)
        self.join()


class History:
    """All margins so far, by step; rewritten whole since the dashboard has no append."""

    def __init__(self, rows):
        self.rows = [{"step": -i, "margin": i / 7.0, "tags": ["warm", str(i)]} for i in range(rows)]

    def add(self, step, margin):
        self.rows[step % len(self.rows)] = {"step": step, "margin": margin, "tags": ["live"]}
        return self.rows


class RewardModel(nn.Module):
    def __init__(self, vocab=2000, dim=96, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.score = nn.Linear(dim, 1)

    def forward(self, ids):
        h = self.emb(ids)
        for block in self.blocks:
            h = h + block(h)
        return self.score(h.mean(dim=1)).squeeze(1)


def word_overlap(a, b):
    """How alike the two answers are, by words."""
    return [len(set(x) & set(y)) / len(x) for x, y in zip(a.tolist(), b.tolist())]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(RewardModel())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    shipper, history = Shipper(), History(22_000)
    shipper.start()
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        good, bad = torch.randint(0, 2000, (2, 16, 48), generator=gen)
        weight = 1.0 - torch.tensor(word_overlap(good, bad))
        good_score, bad_score = model(torch.cat([good, bad])).chunk(2)
        loss = (weight * nn.functional.softplus(bad_score - good_score)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        margin = (good_score - bad_score).mean().item()
        shipper.inbox.put(("note", {"step": step, "loss": loss.item()}))
        shipper.inbox.put(("history", history.add(step, margin)))  # <- also
    wall = time.perf_counter() - t0
    shipper.close()
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * shipper.packing / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
