"""Train by hand with torch.distributed: gradients summed by the script, neighbours in a chain, experts, a pipeline.

    torchrun --nproc-per-node 3 plain.py --clock FOLDER --pattern chain [--fault 0:read:40] ...

Patterns: ``world`` (one all-reduce), ``pairs`` (an all-reduce with each neighbour, one after the other), ``chain`` (a
rank receives from the one before it and sends to the next), ``ring`` (both at once), ``experts`` (all-to-all),
``stages`` (a pipeline of micro-batches, forward and backward). A fault strikes at ``forward`` (for ``stages`` once per
micro-batch and direction), at ``log`` (after the update), or at ``evaluate``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch

WIDTH = 256


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pattern", choices=("world", "pairs", "chain", "ring", "experts", "stages"), default="world")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=256, help="rows that a rank sends to each other one (experts)")
    parser.add_argument("--hot", type=int, default=-1, help="the rank that gets most of the rows (experts)")
    parser.add_argument("--hot-rows", type=int, default=0)
    parser.add_argument("--payload-mib", type=int, default=0, help="summed in each step beside the gradients")
    parser.add_argument("--fault", action="append", default=[])
    return parser.parse_args()


class Trainer:
    """The loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.pairs = [dist.new_group([rank, rank + 1]) for rank in range(self.world - 1)]
        self.payload = torch.zeros(options.payload_mib << 18)
        self.watch = Stopwatch(options.clock, self.rank)
        self.faults = Faults(options.fault, self.watch, self.world, options.clock)
        patterns: dict[str, Callable[[int], None]] = {
            "world": self.sum_over_world,
            "pairs": self.sum_over_pairs,
            "chain": self.pass_along,
            "ring": self.exchange_in_ring,
            "experts": self.route_to_experts,
        }
        self.exchange = patterns.get(options.pattern)

    def run(self) -> None:
        """Train."""
        for step in range(self.options.steps):
            if self.exchange is None:
                self.run_microbatches(step)
            else:
                loss = self.model(torch.randn(self.options.batch, WIDTH)).pow(2).mean()
                self.faults.strike("forward", step)
                loss.backward()
                self.exchange(step)
            self.optimizer.step()
            self.watch.end_step()
            self.optimizer.zero_grad()
            self.faults.strike("log", step)

    def receive(self, values: torch.Tensor, source: int) -> None:
        """Receive from a rank, and time the wait for it."""
        with self.watch.piece("waiting"), self.watch.piece(f"for rank {source}"):
            dist.recv(values, src=source)

    def send(self, values: torch.Tensor, target: int) -> None:
        """Send to a rank, and time how long that blocks."""
        with self.watch.piece(f"for rank {target}"):
            dist.send(values, dst=target)

    def gradients(self) -> torch.Tensor:
        """Return all gradients as one vector."""
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def sum_over_world(self, step: int) -> None:
        """Sum the gradients over all ranks."""
        flat = self.gradients()
        self.watch.arrive("all_reduce")
        dist.all_reduce(flat)
        if len(self.payload):
            with self.watch.piece("transfer"):
                dist.all_reduce(self.payload)

    def sum_over_pairs(self, step: int) -> None:
        """Sum the gradients with each neighbour, in the order of the pairs."""
        flat = self.gradients()
        for first, group in enumerate(self.pairs):
            if self.rank in (first, first + 1):
                self.watch.arrive(f"pair{first}")
                with self.watch.piece("waiting"):
                    dist.all_reduce(flat, group=group)

    def pass_along(self, step: int) -> None:
        """Receive from the rank before this one, and send to the next."""
        flat = self.gradients()
        if self.rank > 0:
            self.receive(torch.empty_like(flat), self.rank - 1)
        if self.rank < self.world - 1:
            self.send(flat, self.rank + 1)

    def exchange_in_ring(self, step: int) -> None:
        """Send to the next rank while receiving from the one before."""
        flat = self.gradients()
        sent = dist.isend(flat, dst=(self.rank + 1) % self.world)
        self.receive(torch.empty_like(flat), (self.rank - 1) % self.world)
        if sent is not None:
            target = (self.rank + 1) % self.world
            with self.watch.piece("waiting"), self.watch.piece(f"for rank {target}"):
                sent.wait()

    def route_to_experts(self, step: int) -> None:
        """Send rows to the rank of their expert, apply it, and send them back."""
        o = self.options
        counts = [o.hot_rows if rank == o.hot else o.rows for rank in range(self.world)]
        rows = torch.randn(sum(counts), WIDTH)
        mine = counts[self.rank]
        received = torch.empty(mine * self.world, WIDTH)
        with torch.no_grad():
            self.watch.arrive("all_to_all")
            dist.all_to_all_single(received, rows, [mine] * self.world, counts)
            with self.watch.piece("expert"):
                for _ in range(8):
                    received = self.model(received)
            self.watch.arrive("all_to_all_back")
            with self.watch.piece("waiting"):
                dist.all_to_all_single(torch.empty_like(rows), received, counts, [mine] * self.world)

    def run_microbatches(self, step: int) -> None:
        """Run all forwards, then all backwards, of the stage of this rank."""
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(self.options.microbatches):
            entered = torch.randn(self.options.batch, WIDTH)
            if self.rank > 0:
                self.receive(entered, self.rank - 1)
            entered.requires_grad_()
            left = self.model(entered)
            self.faults.strike("forward", step)
            kept.append((entered, left))
            if self.rank < self.world - 1:
                self.send(left.detach(), self.rank + 1)
        for entered, left in reversed(kept):
            gradient = torch.ones_like(left)
            if self.rank < self.world - 1:
                self.receive(gradient, self.rank + 1)
            torch.autograd.backward(left, gradient)
            self.faults.strike("backward", step)
            if self.rank > 0 and entered.grad is not None:
                self.send(entered.grad, self.rank - 1)


if __name__ == "__main__":
    Trainer(parse_options()).run()
    dist.destroy_process_group()
