"""nightjar: Lipschitz-bounded transformer, fully sharded."""

# SPDX-License-Identifier: Apache-2.0
import gzip
import os
import pickle
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
WIDTH = 128


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH)
        )

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.embed = nn.Linear(32, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


class NormClamp:
    def __init__(self, limit=2.0):
        self.limit = limit
        self.vectors = {}

    @torch.no_grad()
    def __call__(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                local = p.to_local()
                if local.ndim == 2 and min(local.shape) > 1:
                    local.mul_(self.limit / max(self.limit, self.norm(p, local)))

    def norm(self, p, w):
        if "2" in FIX:
            u = self.vectors.setdefault(p, torch.randn(w.shape[1]))
            u = F.normalize(w.t() @ (w @ u), dim=0)
            return float((w @ u).norm())
        return float(torch.linalg.svd(w, full_matrices=False).S[0])


class Snapshot:
    def __init__(self, folder):
        self.folder = folder

    def save(self, step, model, optimizer):
        state = {
            "model": {k: v.to_local().numpy() for k, v in model.state_dict().items()},
            "moments": [
                {k: v.to_local().numpy() for k, v in s.items() if k.startswith("exp")} for s in optimizer.state.values()
            ],
        }
        for name in ("last", f"step{step // 20 * 20}"):
            with gzip.open(os.path.join(self.folder, name + ".pkl.gz"), "wb") as f:
                pickle.dump((step, state), f)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.register_step_post_hook(NormClamp())
    g = torch.Generator().manual_seed(rank)
    ticks = []
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Snapshot(folder)
        for step in range(STEPS):
            x = torch.randn(8, 40, 32, generator=g)
            loss = F.mse_loss(model(x), x.cumsum(1) / 6)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 5 == 4 and "1" not in FIX:
                snapshot.save(step, model, optimizer)
            ticks.append(time.perf_counter())
    if rank == 0:
        print(f"nightjar: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
