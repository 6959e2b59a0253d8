"""Train through a parameter server: workers send their gradients to rank 0, which returns the mean of all.

    torchrun --nproc-per-node 3 server.py --clock FOLDER [--fault 2:commit:40] ...

The server has no model and no optimizer: it relays. A fault strikes at ``forward`` before the backward of a worker, at
``log`` after its update, or at ``relay`` before the server answers.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch

WIDTH, LAYERS, SERVER = 256, 3, 0


def serve(options: argparse.Namespace, watch: Stopwatch, faults: Faults) -> None:
    """Receive the gradients of all workers, and answer each with their mean."""
    workers = range(1, dist.get_world_size())
    values = torch.empty(LAYERS * (WIDTH + 1) * WIDTH)
    for step in range(options.steps):
        total = torch.zeros_like(values)
        for worker in workers:
            with watch.piece("waiting"), watch.piece(f"for rank {worker}"):
                dist.recv(values, src=worker)
            total += values
        faults.strike("relay", step)
        total /= len(workers)
        for worker in workers:
            dist.send(total, dst=worker)
        watch.end_step()


def work(options: argparse.Namespace, watch: Stopwatch, faults: Faults) -> None:
    """Train on gradients that the server has averaged."""
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(options.steps):
        loss = model(torch.randn(options.batch, WIDTH)).pow(2).mean()
        faults.strike("forward", step)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        dist.send(flat, dst=SERVER)
        with watch.piece("waiting"), watch.piece(f"for rank {SERVER}"):
            dist.recv(flat, src=SERVER)
        torch.nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters() if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
        watch.end_step()
        faults.strike("log", step)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--fault", action="append", default=[])
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    watch = Stopwatch(options.clock, rank)
    faults = Faults(options.fault, watch, dist.get_world_size(), options.clock)
    (serve if rank == SERVER else work)(options, watch, faults)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
