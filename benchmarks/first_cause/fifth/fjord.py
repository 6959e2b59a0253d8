"""Hand-made tensor parallelism: each rank owns half of the columns."""

# SPDX-License-Identifier: Apache-2.0
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "")
STEPS = int(os.environ.get("STEPS", 36))
WIDE = torch.float32 if "1" in FIX else torch.float64


class Collect(torch.autograd.Function):
    """Put the column halves of all ranks side by side."""

    @staticmethod
    def forward(ctx, part):
        ctx.width = part.shape[-1]
        send = part.to(WIDE).contiguous()
        if "1" not in FIX:
            send = send.repeat(8, 1)  # room for the spare heads, unused so far
        parts = [torch.empty_like(send) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, send)
        whole = torch.cat(parts, -1).to(part.dtype)
        return whole[: part.shape[0]]

    @staticmethod
    def backward(ctx, grad):
        r = dist.get_rank()
        return grad[..., r * ctx.width : (r + 1) * ctx.width].contiguous()


class ColumnLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out // dist.get_world_size())

    def forward(self, x):
        return Collect.apply(self.lin(x))


class Notebook:
    def __init__(self):
        self.file = open(os.path.join(tempfile.mkdtemp(), "notes.jsonl"), "w")

    def write(self, step, model, loss):
        page = {"step": step, "loss": loss}
        if "2" not in FIX:
            page["rows"] = {k: v.detach()[:12].tolist() for k, v in model.named_parameters()}
        self.file.write(json.dumps(page) + "\n")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(
        ColumnLinear(256, 512),
        nn.ReLU(),
        ColumnLinear(512, 512),
        nn.ReLU(),
        ColumnLinear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 4),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    notes, secs = Notebook(), []
    for step in range(STEPS):
        t = time.perf_counter()
        gen = torch.Generator().manual_seed(step)
        x = torch.randn(448, 256, generator=gen)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        notes.write(step, model, loss.item())
        secs.append(time.perf_counter() - t)
    if dist.get_rank() == 0:
        print(f"mean step {sum(secs[2:]) / (STEPS - 2) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
