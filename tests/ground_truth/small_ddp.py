"""A small data-parallel job over gloo, for tests of how it is launched: `small_ddp.py STEPS [RANK STEP]`.

That rank fails in that step, once; torchrun answers with a restart of all ranks. The rank LATE_RANK, if there is one,
takes 60 ms longer in each tenth step, and SLOW_S seconds longer in step SLOW_STEP. After the last step the ranks stay
for a minute, or until the file STAYS_UNTIL exists.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    steps = int(sys.argv[1])
    who, when = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (-1, -1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(8 * steps, 64)), batch_size=8)
    late = int(os.environ.get("LATE_RANK", "-1"))
    slow, slow_s = int(os.environ.get("SLOW_STEP", "-1")), float(os.environ.get("SLOW_S", "2"))
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for step, (batch,) in enumerate(data):
        if (rank, step) == (who, when) and first:
            raise RuntimeError("told to fail")
        if rank == late and step == slow:
            time.sleep(slow_s)
        time.sleep(0.08 if rank == late and step % 10 == 0 else 0.02)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 4:
            print(f"rank {rank} trains", flush=True)
    until, begin = os.environ.get("STAYS_UNTIL", ""), time.monotonic()
    while until and not os.path.exists(until) and time.monotonic() - begin < 60:
        time.sleep(0.1)
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    main()
