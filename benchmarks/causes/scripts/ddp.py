"""Train a small network with DistributedDataParallel, or alone, on random batches.

    torchrun --nproc-per-node 2 ddp.py --clock FOLDER [--steps 60] [--fault 1:sleep:40] ...

Points of the loop at which faults strike: ``data`` before the forward, ``forward`` before the backward, ``update``
before the optimizer, ``log`` after it, and ``second`` between two barriers.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from stopwatch import Stopwatch
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--extra", choices=("none", "barrier", "broadcast", "gather", "barriers"), default="none")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--closure", action="store_true", help="the forward and backward run inside optimizer.step")
    parser.add_argument("--wrap", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--die", default="", metavar="RANK:STEP", help="this rank raises an exception")
    parser.add_argument(
        "--die-once", default="", metavar="RANK:STEP", help="it does until torchrun has restarted the ranks"
    )
    parser.add_argument("--hang", default="", metavar="RANK:STEP", help="this rank sleeps for ever")
    parser.add_argument("--mismatch", default="", metavar="RANK:STEP", help="this rank calls a barrier instead")
    return parser.parse_args()


def strikes(spec: str, rank: int, step: int) -> bool:
    """Return whether RANK:STEP is now."""
    return spec == f"{rank}:{step}"


class Trainer:
    """The loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if self.world > 1:
            join_group(self.life, self.rank, self.world)
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(options.layers)]
        self.model: torch.nn.Module = torch.nn.Sequential(*layers)
        self.wrapped = self.wrap()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.watch = Stopwatch(options.clock, self.rank)
        # What is planted beside a death begins with the ranks' second life.
        planted = [] if options.die_once and self.life == 0 else options.fault
        self.faults = Faults(planted, self.watch, self.world, options.clock)

    def wrap(self) -> torch.nn.Module:
        """Make the model parallel over the ranks."""
        if self.world == 1:
            return self.model
        if self.options.wrap == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (self.world,))
            for layer in self.model.children():
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
            return self.model
        return DistributedDataParallel(self.model)

    def run(self) -> None:
        """Train."""
        for step in range(self.options.steps):
            self.train_step(step)
            every = self.options.evaluate_every
            if every and step % every == every - 1:
                self.evaluate(step)

    def train_step(self, step: int) -> None:
        """Make one step, with as many batches as are accumulated."""
        self.faults.strike("data", step)
        self.end_badly(step)
        if self.options.closure:
            self.optimizer.step(lambda: self.losses(step))
        else:
            self.losses(step)
            self.faults.strike("update", step)
            self.optimizer.step()
        self.watch.end_step()
        self.optimizer.zero_grad()
        self.faults.strike("log", step)
        self.communicate(step)

    def losses(self, step: int) -> float:
        """Run forward and backward over the batches of a step."""
        count, total = self.options.accumulate, 0.0
        for batch in range(count):
            last = batch == count - 1
            quiet: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if not last and isinstance(self.wrapped, DistributedDataParallel):
                quiet = self.wrapped.no_sync()
            with quiet:
                loss = self.wrapped(torch.randn(self.options.batch, WIDTH)).pow(2).mean()
                self.faults.strike("forward", step)
                if last:
                    self.watch.arrive("all_reduce")
                loss.backward()
                total += float(loss)
        return total

    def communicate(self, step: int) -> None:
        """Call the collective that a script has beside those of DDP."""
        extra = self.options.extra
        if extra == "none":
            return
        small = torch.zeros(4)
        self.watch.arrive(extra)
        if extra == "broadcast":
            dist.broadcast(small, src=0)
        elif extra == "gather":
            dist.gather(small, [torch.zeros(4) for _ in range(self.world)] if self.rank == 0 else None, dst=0)
        else:
            dist.barrier()
        if extra == "barriers":
            self.faults.strike("second", step)
            self.watch.arrive("second_barrier")
            dist.barrier()

    def evaluate(self, step: int) -> None:
        """Run a few forwards without gradients."""
        self.wrapped.eval()
        with torch.no_grad():
            for _ in range(3):
                self.faults.strike("evaluate", step)
                self.model(torch.randn(self.options.batch, WIDTH))
        self.watch.end_step("eval")
        self.wrapped.train()

    def end_badly(self, step: int) -> None:
        """Raise, hang or call another collective, if it is the time for it."""
        dies_now = self.life == 0 and strikes(self.options.die_once, self.rank, step)
        if dies_now or strikes(self.options.die, self.rank, step):
            raise ValueError("label 1042 is not in the vocabulary")
        if strikes(self.options.hang, self.rank, step):
            wait_for_licence()
        if strikes(self.options.mismatch, self.rank, step):
            dist.barrier()


def join_group(life: int, rank: int, world: int) -> None:
    """Connect to the other ranks.

    The store of torchrun outlives the ranks, and with it the addresses of those that are gone.
    """
    if life == 0:
        dist.init_process_group("gloo")
        return
    kept = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore(f"life {life}", kept), rank=rank, world_size=world)


def wait_for_licence() -> None:
    """Wait for what never comes."""
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    Trainer(parse_options()).run()
    if dist.is_initialized():
        dist.destroy_process_group()
