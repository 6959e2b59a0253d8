"""Train a small network whose Adam is either on every rank or sharded over the ranks.

    torchrun --standalone --nproc-per-node 2 examples/sharded_adam.py --optimizer replicated
    torchrun --standalone --nproc-per-node 2 examples/sharded_adam.py --optimizer sharded

Replicated: all-reduce the gradients, then each rank updates all parameters. Sharded: reduce-scatter the gradients, each
rank updates its slice, then the slices are gathered. Both move the same bytes and end with the same parameters. In the
second, a rank holds one N-th of Adam's state and does one N-th of its work.

gloo has both halves, but they are no halves: its reduce-scatter runs a whole all-reduce, and its all-gather takes twice
the time of one (torch 2.13). So the slices go out by all-to-all and are added up here, and come back by one broadcast
per owner.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from plain_clock import PlainClock
from torch import nn


class FlatParameters:
    """Parameters and gradients of a model as views of two flat tensors, padded to a multiple of the ranks."""

    def __init__(self, model: nn.Module, ranks_count: int) -> None:
        parameters = list(model.parameters())
        count = sum(parameter.numel() for parameter in parameters)
        padded = -(-count // ranks_count) * ranks_count
        self.values = torch.zeros(padded)
        self.gradients = torch.zeros(padded)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            self.values[begin:end] = parameter.data.flatten()
            parameter.data = self.values[begin:end].view_as(parameter)
            parameter.grad = self.gradients[begin:end].view_as(parameter)
            begin = end


class ReplicatedAdam:
    """The gradients' mean on every rank, and the whole update on every rank."""

    def __init__(self, flat: FlatParameters, *, lr: float, fused: bool = False) -> None:
        self.flat = flat
        self.parameter = nn.Parameter(flat.values)
        self.parameter.grad = flat.gradients
        self.adam = torch.optim.Adam([self.parameter], lr=lr, fused=fused)

    def step(self) -> None:
        """Average, update."""
        dist.all_reduce(self.flat.gradients)
        self.flat.gradients.div_(dist.get_world_size())
        self.adam.step()


class ShardedAdam:
    """The gradients' mean of one slice, its update, and the slices of all ranks put together again."""

    def __init__(self, flat: FlatParameters, *, lr: float, fused: bool = False) -> None:
        ranks_count, rank = dist.get_world_size(), dist.get_rank()
        self.flat = flat
        self.slices = list(flat.values.chunk(ranks_count))
        self.arrived = torch.empty_like(flat.gradients)
        self.parameter = nn.Parameter(self.slices[rank])
        self.parameter.grad = torch.empty_like(self.slices[rank])
        self.adam = torch.optim.Adam([self.parameter], lr=lr, fused=fused)

    def step(self) -> None:
        """Reduce-scatter, update the slice, all-gather."""
        ranks_count = dist.get_world_size()
        dist.all_to_all_single(self.arrived, self.flat.gradients)
        torch.sum(self.arrived.view(ranks_count, -1), dim=0, out=self.parameter.grad)
        self.parameter.grad.div_(ranks_count)  # type: ignore[union-attr]
        self.adam.step()
        for owner, piece in enumerate(self.slices):
            dist.broadcast(piece, owner)


OPTIMIZERS = {"replicated": ReplicatedAdam, "sharded": ShardedAdam}


def build_model(width: int, hidden: int) -> nn.Module:
    """Three linear layers of ``hidden * (2 * width + hidden)`` weights."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, width)
    )


def train(options: argparse.Namespace) -> None:
    """The training loop of one rank, on numbers that each rank draws for itself."""
    rank, ranks_count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)  # the same first parameters everywhere
    model = build_model(options.width, options.hidden)
    flat = FlatParameters(model, ranks_count)
    optimizer = OPTIMIZERS[options.optimizer](flat, lr=options.lr, fused=options.fused)
    draws = torch.Generator().manual_seed(options.seed + 1 + rank)
    clock = PlainClock(options.truth, rank)
    for step in range(options.steps):
        batch = torch.randn(options.batch_size, options.width, generator=draws)
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
        flat.gradients.zero_()
        loss.backward()
        clock.lap("compute")
        optimizer.step()
        clock.lap("optimizer")
        clock.end_step()
        if rank == 0 and (step + 1) % options.log_every == 0:
            print(f"step {step + 1}/{options.steps}  loss {loss.item():.4f}", flush=True)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        torch.save(flat.values, options.save / f"rank-{rank}.pt")


def parse_options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--optimizer", choices=sorted(OPTIMIZERS), default="replicated")
    add("--fused", action="store_true", help="torch's fused kernel of Adam")
    add("--width", type=int, default=1024, help="numbers of a sample")
    add("--hidden", type=int, default=3584, help="20 M parameters with the default width")
    add("--batch-size", type=int, default=16, help="samples per rank and step")
    add("--steps", type=int, default=20)
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=0)
    add("--log-every", type=int, default=10, metavar="STEPS")
    add("--save", type=Path, help="folder for each rank's final parameters")
    add("--truth", type=Path, help="folder for the script's times, as JSON lines")
    return parser.parse_args()


def main() -> None:
    """Entry point of each rank; needs torchrun."""
    options = parse_options()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, two ranks or more")
    dist.init_process_group("gloo")
    train(options)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads need the interpreter once more, as in train_ddp.py


if __name__ == "__main__":
    main()
