"""Horn-tone sequence model on three ranks with a rare metric gather."""

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", "40"))


class Tone(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(12, 144, batch_first=True)
        self.out = nn.Linear(144, 12)

    def forward(self, x):
        return self.out(self.cell(x)[0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = nn.parallel.DistributedDataParallel(Tone())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    t0 = time.perf_counter()
    for step in range(STEPS):
        x = torch.randn(44, 40, 12)
        opt.zero_grad()
        loss = (net(x)[:, :-1] - x[:, 1:]).square().mean()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            seen = [torch.empty(1) for _ in range(world)]
            dist.all_gather(seen, loss.detach().view(1))
    if rank == 0:
        print(f"mean step {(time.perf_counter() - t0) / STEPS * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
