"""A job of two ranks on gloo in which rank 1 computes longer at planted steps: ``slow_steps_job.py FOLDER``.

Steps take some 40 ms. Each rank writes ``STEP CLOCK_REALTIME`` into FOLDER/ends.RANK at the end of each planted step.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

#: Steps that take ``LONGER_S`` longer, and steps in all.
PLANTED = range(250, 1000, 75)
LONGER_S, STEP_S, STEPS = 0.4, 0.03, 1100


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open(Path(sys.argv[1]) / f"ends.{rank}", "w", buffering=1) as ends:
        for step in range(STEPS):
            time.sleep(STEP_S + (LONGER_S if rank == 1 and step in PLANTED else 0.0))
            model(torch.ones(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in PLANTED:
                ends.write(f"{step} {time.time_ns()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
