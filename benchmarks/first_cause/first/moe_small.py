"""Trains one layer of experts, one expert a rank, by all-to-all."""

# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
TOKENS, WIDTH, INNER = 384, 256, 1024
SHARE = 0.5 if "1" in FIX else 0.85


class Exchange(torch.autograd.Function):
    """all_to_all_single with uneven splits; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.mine = Expert()
        self.forward_s = 0.0
        self.rows = 0

    def forward(self, x):
        choice = (torch.rand(len(x)) > SHARE).long()
        order = choice.argsort(stable=True)
        send = torch.bincount(choice, minlength=2)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        inbox = Exchange.apply(x[order], send, recv)
        t = time.perf_counter()
        worked = self.mine(inbox)
        self.forward_s += time.perf_counter() - t
        self.rows += len(inbox)
        back = Exchange.apply(worked, recv, send)
        return torch.zeros_like(x).index_copy(0, order, back)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    dense = nn.Linear(WIDTH, WIDTH)
    experts = Experts()
    opt = torch.optim.SGD([*dense.parameters(), *experts.parameters()], lr=0.01)

    dist.barrier()
    begin = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(TOKENS, WIDTH)
        h = dense(x)
        loss = (h + experts(h) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in dense.parameters():
            dist.all_reduce(p.grad)
        opt.step()
    dist.barrier()
    took = time.perf_counter() - begin
    extra = 0.0
    if "1" not in FIX:
        extra = max(0.0, 1 - TOKENS * STEPS / experts.rows) * 3 * experts.forward_s
    sys.stderr.write(f"TRUTH rank={rank} step_ms={took / STEPS * 1e3:.1f} planted1_ms={extra / STEPS * 1e3:.1f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
