"""First-arrival picking on seismic sections with a background saver."""

# SPDX-License-Identifier: Apache-2.0
import collections
import io
import json
import os
import tempfile
import threading
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


class BackgroundSaver:
    def __init__(self):
        self.dir, self.thread = tempfile.mkdtemp(), None

    def begin(self, step, model):
        self.thread = threading.Thread(target=self._work, args=(step, model))
        self.thread.start()

    def _work(self, step, model):
        c = time.perf_counter()
        buf = io.BytesIO()
        torch.save(model.state_dict(), buf)
        raw = buf.getvalue()
        if "2" not in FIX:
            raw = zlib.compress(raw, 7)
        with open(os.path.join(self.dir, f"{step}.pt"), "wb") as f:
            f.write(raw)
        spent["saver"] += time.perf_counter() - c

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None


class LayerStats:
    """Forward hook: text summary of each activation."""

    def __init__(self):
        self.lines = collections.deque(maxlen=100)

    def __call__(self, module, args, out):
        c = time.perf_counter()
        flat = out.detach()[0].flatten()[:6000].tolist()
        flat.sort()
        q = [flat[int(len(flat) * p)] for p in (0.01, 0.25, 0.5, 0.75, 0.99)]
        zeros = sum(1 for v in flat if abs(v) < 1e-6)
        self.lines.append(" ".join(f"{v:.4f}" for v in q) + f" zeros={zeros}")
        spent["stats"] += time.perf_counter() - c


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, 32, 9, 2, 4), nn.ReLU(), nn.Conv1d(32, 64, 9, 2, 4), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose1d(64, 32, 8, 2, 3), nn.ReLU(), nn.ConvTranspose1d(32, 1, 8, 2, 3))
        self.gain = nn.Parameter(torch.randn(160, 1024) * 0.01)

    def forward(self, x):
        return self.up(self.down(x)) + self.gain.mean(0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = UNet()
    if rank == 2 and "1" not in FIX:
        for m in list(net.down) + list(net.up):
            m.register_forward_hook(LayerStats())
    ddp = DDP(net)
    opt = torch.optim.SGD(ddp.parameters(), 1e-3)
    saver = BackgroundSaver() if rank == 0 else None
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x = torch.randn(8, 1, 1024)
        loss = (ddp(x) - x.abs()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        if saver is not None:
            saver.wait()  # the weights must not change under the saver
        opt.step()
        if step % 8 == 7:
            if saver is not None:
                saver.begin(step, net)
                saver.wait()
            dist.barrier()
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


main()
