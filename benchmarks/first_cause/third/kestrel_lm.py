"""kestrel_lm: byte-level language model, sharded, with micro-batches."""

# SPDX-License-Identifier: Apache-2.0
import os
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
MICRO = 3
WIDTH = 128


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class ByteLM(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(model, mesh):
    keep = "1" in FIX
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(model, mesh=mesh, reshard_after_forward=not keep)
    return model


class Trainer:
    def __init__(self, model, optimizer, seed):
        self.model, self.optimizer = model, optimizer
        self.g = torch.Generator().manual_seed(seed)

    def batch(self):
        return torch.randint(0, 256, (2, 65), generator=self.g)

    def step(self):
        self.optimizer.zero_grad()
        for micro in range(MICRO):
            if "1" in FIX:
                last = micro == MICRO - 1
                self.model.set_requires_gradient_sync(last)
                self.model.set_reshard_after_backward(last)
            tokens = self.batch()
            logits = self.model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / MICRO
            loss.backward()
        self.optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = shard(ByteLM(), mesh)
    trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-4), rank)
    ticks = []
    for _step in range(STEPS):
        trainer.step()
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"kestrel_lm: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
