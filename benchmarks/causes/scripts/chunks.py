"""Train a pipeline of torch.distributed.pipelining in which each rank holds several stages (interleaved schedules).

    torchrun --nproc-per-node 2 chunks.py --clock FOLDER [--chunks 2] [--microbatches 4] [--fault 1:sleep:10] ...

Rank r of R holds the stages r, r + R, and so on, so activations go round from the last rank to the first. A fault
strikes at ``forward``, once for each micro-batch and chunk (``chunk0``, ``chunk1``, ...: in one chunk alone), or at
``log`` (after the update).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    schedules,
)

WIDTH = 256
INTERLEAVED = {"interleaved": ScheduleInterleaved1F1B, "looped": ScheduleLoopedBFS}
PLAIN = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--schedule", choices=(*INTERLEAVED, *PLAIN), default="interleaved")
    parser.add_argument("--chunks", type=int, default=2, help="stages of each rank")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="rows of a micro-batch")
    parser.add_argument("--layers", type=int, default=3, help="of a stage")
    parser.add_argument("--fault", action="append", default=[])
    return parser.parse_args()


class Chunk(torch.nn.Module):
    """The layers of one stage; what is planted happens in their forward."""

    def __init__(self, layers: int, strike: Callable[[], None]) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        self.strike = strike

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Compute a micro-batch."""
        left: torch.Tensor = self.layers(values)
        self.strike()
        return left


class TimedStage(PipelineStage):
    """A stage whose forwards and backwards are timed."""

    def __init__(self, watch: Stopwatch, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.watch = watch

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute the forward of a micro-batch."""
        with self.watch.piece("computing"):
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute the backward of a micro-batch."""
        with self.watch.piece("computing"):
            return super().backward_one_chunk(*arguments, **named)


class Trainer:
    """The loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.step = -1
        self.watch = Stopwatch(options.clock, self.rank)
        self.faults = Faults(options.fault, self.watch, self.world, options.clock)
        time_receives(self.watch)
        count = self.world * options.chunks
        numbers = range(self.rank, count, self.world)
        self.chunks = torch.nn.ModuleList(
            Chunk(options.layers, lambda place=place: self.strike(place)) for place in range(len(numbers))
        )
        device = torch.device("cpu")
        stages = [
            TimedStage(self.watch, chunk, number, count, device)
            for chunk, number in zip(self.chunks, numbers, strict=True)
        ]
        if options.schedule in PLAIN:
            self.schedule: Any = PLAIN[options.schedule](stages[0], options.microbatches, loss_fn=loss_of)
        else:
            self.schedule = INTERLEAVED[options.schedule](stages, options.microbatches, loss_fn=loss_of)
        self.optimizer = torch.optim.SGD(self.chunks.parameters(), lr=1e-4)
        self.gets, self.ends = self.rank == 0, self.rank == self.world - 1

    def strike(self, chunk: int) -> None:
        """Do what is planted in a forward; none is while the stages try the shapes of their values."""
        if self.step >= 0:
            self.faults.strike("forward", self.step)
            self.faults.strike(f"chunk{chunk}", self.step)

    def run(self) -> None:
        """Train; the first step, in which the stages find out shapes, is one more."""
        rows = self.options.batch * self.options.microbatches
        for step in range(-1, self.options.steps):
            self.step = step
            inputs = (torch.randn(rows, WIDTH),) if self.gets else ()
            self.schedule.step(*inputs, target=torch.zeros(rows, WIDTH) if self.ends else None)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.watch.end_step()
            if step >= 0:
                self.faults.strike("log", step)


def loss_of(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the loss of a micro-batch."""
    return (values - target).pow(2).mean()


def time_receives(watch: Stopwatch) -> None:
    """Time how long a rank waits for what it receives."""
    start, wait = schedules._batch_p2p, schedules._wait_batch_p2p
    received: dict[int, list[dist.Work]] = {}

    def started(operations: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        works = start(operations, desc)
        if any(operation.op is dist.irecv for operation in operations):
            received[id(works)] = works
        return works

    def waited(works: list[dist.Work]) -> None:
        if received.pop(id(works), None) is None:
            wait(works)
            return
        with watch.piece("waiting"):
            wait(works)

    schedules._batch_p2p, schedules._wait_batch_p2p = started, waited


if __name__ == "__main__":
    Trainer(parse_options()).run()
    dist.destroy_process_group()
