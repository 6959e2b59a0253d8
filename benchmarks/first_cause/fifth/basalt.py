"""Learning to rank search results, data parallel, with careful record keeping."""

# SPDX-License-Identifier: Apache-2.0
import functools
import gc
import hashlib
import json
import os
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 48))
AUDIT = []
# the catalogue that the ranker would look things up in
CATALOGUE = {i: [i, str(i), {"p": i}] for i in range(40000)}


def audited(fn):
    """Leave a fingerprint of what went into every call."""

    @functools.wraps(fn)
    def wrapper(model, x, y):
        if "1" not in FIX:
            text = json.dumps({"x": x.tolist(), "y": y.tolist()}, sort_keys=True)
            AUDIT.append(hashlib.sha256(text.encode()).hexdigest())
        return fn(model, x, y)

    return wrapper


@contextmanager
def tidy_scope(step):
    """Nothing of these steps may live on into the next few."""
    yield
    if step % 16 == 15 and "2" not in FIX:
        gc.collect()


@audited
def ranking_loss(model, x, y):
    s = model(x).squeeze(-1)
    diff = s.unsqueeze(2) - s.unsqueeze(1)
    want = (y.unsqueeze(2) > y.unsqueeze(1)).float()
    return (want * nn.functional.softplus(-diff)).mean()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    model = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    spent = []
    for step in range(STEPS):
        t = time.perf_counter()
        with tidy_scope(step):
            x, y = torch.randn(24, 20, 64), torch.rand(24, 20)
            loss = ranking_loss(model, x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        spent.append(time.perf_counter() - t)
    if dist.get_rank() == 0:
        print(f"{len(AUDIT)} records, mean step {sum(spent[2:]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
