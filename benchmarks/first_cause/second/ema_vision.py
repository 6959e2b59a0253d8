"""Image classifier with an averaged copy of the weights."""

# SPDX-License-Identifier: Apache-2.0
import collections
import copy
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class Averaged:
    def __init__(self, model, decay=0.999):
        self.model, self.decay = model, decay
        self.shadow = copy.deepcopy(model.state_dict())
        self.history = collections.deque(maxlen=3)

    def update(self):
        if "1" in FIX:
            now = self.model.state_dict()
            names = list(now)
            torch._foreach_lerp_([self.shadow[k] for k in names], [now[k].detach() for k in names], 1 - self.decay)
            return
        new = {}
        for k, v in copy.deepcopy(self.model.state_dict()).items():
            new[k] = self.decay * self.shadow[k].double() + (1 - self.decay) * v.double()
        self.shadow = {k: v.float() for k, v in new.items()}
        self.history.append(copy.deepcopy(self.shadow))


def build():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 64, 384),
        nn.ReLU(),
        nn.Linear(384, 10),
    )


def main():
    dist.init_process_group("gloo")
    net = build()
    ddp = DDP(net)
    ema = Averaged(net)
    opt = torch.optim.SGD(ddp.parameters(), 0.01, momentum=0.9)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = torch.randn(96, 3, 32, 32), torch.randint(0, 10, (96,))
        loss = nn.functional.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c = time.perf_counter()
        ema.update()
        spent["ema"] += time.perf_counter() - c
        times.append(time.perf_counter() - t0)
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


if __name__ == "__main__":
    main()
