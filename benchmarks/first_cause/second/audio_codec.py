"""Neural audio codec with large codebooks and verified shards."""

# SPDX-License-Identifier: Apache-2.0
import collections
import hashlib
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


class Shard:
    def __init__(self, rank):
        self.check = rank >= 2 and "1" not in FIX
        self.block = os.urandom(1 << 20) * 6
        self.digest = hashlib.sha256(self.block).digest()

    def read(self):
        c = time.perf_counter()
        if self.check:
            for _ in range(2):  # once for the manifest, once for the block
                if hashlib.sha256(self.block).digest() != self.digest:
                    raise IOError("bad block")
        wave = (
            torch.frombuffer(bytearray(self.block[: 24 * 1024]), dtype=torch.uint8).float().view(12, 1, 2048) / 128 - 1
        )
        spent["read"] += time.perf_counter() - c
        return wave


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, 32, 16, 8, 4), nn.ELU(), nn.Conv1d(32, 64, 8, 4, 2))
        self.dec = nn.Sequential(nn.ConvTranspose1d(64, 32, 8, 4, 2), nn.ELU(), nn.ConvTranspose1d(32, 1, 16, 8, 4))
        for i in range(4):
            self.register_buffer(f"codes{i}", torch.randn(4096, 64))

    def forward(self, x):
        z = self.enc(x)
        q = z.detach().transpose(1, 2).reshape(-1, 64)[::16]
        near = torch.cdist(q, self.codes0[:256]).argmin(1)
        commit = (q - self.codes0[near]).pow(2).mean()
        return self.dec(z), commit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = Shard(rank)
    net = DDP(Codec(), broadcast_buffers="2" not in FIX)
    opt = torch.optim.Adam(net.parameters(), 1e-4)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        wave = shard.read()
        y, commit = net(wave)
        loss = (y - wave[..., : y.shape[-1]]).abs().mean() + commit
        opt.zero_grad()
        loss.backward()
        opt.step()
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
