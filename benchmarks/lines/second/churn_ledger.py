"""Churn model on tabular rows, with a ledger of what each rank has seen."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import random
import sys
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "50"))
PLANS = ["basic", "plus", "family", "student", "legacy"]


class Ledger:
    """Rows seen so far (a sliding window) and cheap statistics over them."""

    def __init__(self, keep):
        self.keep = keep
        self.rows = []
        self.cost = 0.0

    def append(self, rows):
        self.rows.extend(rows)
        del self.rows[: max(0, len(self.rows) - self.keep)]

    @property
    def count(self):
        return len(self.rows)

    @property
    def checksum(self):
        text = json.dumps(self.rows[-8:])
        return zlib.crc32(zlib.compress(text.encode(), 9))

    @property
    def footprint(self):
        text = "".join(self.rows).encode()
        t0 = time.perf_counter()
        packed = zlib.compress(text, 9)  # <- here
        self.cost += time.perf_counter() - t0
        return len(packed)


def draw_rows(rng, n):
    out = []
    for _ in range(n):
        out.append(
            json.dumps(
                {
                    "id": rng.getrandbits(40),
                    "plan": rng.choice(PLANS),
                    "tenure": rng.randrange(90),
                    "spend": round(rng.gauss(40, 12), 3),
                }
            )
        )
    return out


def featurise(rows):
    feats, labels = [], []
    for row in map(json.loads, rows):
        onehot = [float(row["plan"] == p) for p in PLANS]
        feats.append(onehot + [row["tenure"] / 90, row["spend"] / 100])
        labels.append(float(row["tenure"] < 20 and row["spend"] > 35))
    return torch.tensor(feats), torch.tensor(labels)


def average_grads(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def train(rank, world):
    torch.manual_seed(7)
    rng = random.Random(1000 + rank)
    model = nn.Sequential(
        nn.Linear(7, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 1)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    ledger = Ledger(keep=9_000)
    ledger.append(draw_rows(rng, 9_000))
    history = []
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(STEPS):
        rows = draw_rows(rng, 256)
        x, y = featurise(rows)
        ledger.append(rows)
        entry = {"step": step, "count": ledger.count, "sum": ledger.checksum}
        if rank == world - 1:
            entry["bytes"] = ledger.footprint  # <- also
        loss = loss_fn(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        average_grads(model, world)
        opt.step()
        entry["loss"] = loss.item()
        history.append(entry)
    wall = time.perf_counter() - t0
    sys.stderr.write(
        "TRUTH rank=%d planted_ms_per_step=%.1f step_ms=%.1f\n" % (rank, 1e3 * ledger.cost / STEPS, 1e3 * wall / STEPS)
    )
    return history


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    hist = train(dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        print(json.dumps(hist[-1]))
    dist.destroy_process_group()
