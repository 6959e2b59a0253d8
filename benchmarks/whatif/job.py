"""A data-parallel job of ``bench_whatif.py`` whose amounts of work are chosen: ``job.py CONFIG``, a JSON of ``Config``.

A rank computes (burns CPU) and waits (as if for a device); a worker computes, waits, and reads a file that is not in
memory. Gradients have chosen sizes. How long all of that takes, the recording says.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import random
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

#: A job reads a piece of each place of its file; what lies behind the piece keeps them apart.
PLACE_BYTES, PIECE_BYTES = 1 << 18, 1 << 17
ENCODED = bytes(1 << 18)


@dataclasses.dataclass(frozen=True)
class Config:
    """What a job does; times in ms of each step and rank, or of each batch.

    Attributes
    ----------
    loop
        ``ddp``; ``manual``: an all-reduce for each gradient, one after the other; or ``groups``: each gradient has a
        process group of its own, and all of them may be in flight at once; after them the loss is reduced.
    gradient_kib
        Sizes of the gradients; the last one is ready first.
    prep_ms, prep_wait_ms, reads
        A batch: CPU, waiting, and pieces that are read of ``file``, each batch others.
    compute_ms, device_ms
        The step thread: CPU, and asleep as if a device worked.
    burst_ms, burst_every
        One of so many batches waits so much longer.
    slow_worker_ms
        What worker 1 waits longer for each of its batches.
    in_order, parted
        Whether the batches are taken in turn; and whether each worker makes those of its own, endless part of the data.
    passes
        Passes over ``steps / passes`` batches; each starts its workers anew.
    late_ms, late_rank, late_every, late_turns
        What one rank sleeps beside that, in each step, or in one of so many; of ``groups``, before its last launch.
        With ``late_turns`` the ranks take turns.
    between_ms, between_wait_ms
        Of ``groups``, between two launches: CPU, and asleep as if a device worked; steps take the latter in turn.
    """

    ranks: int = 2
    loop: str = "ddp"
    steps: int = 60
    gradient_kib: tuple[int, ...] = (128, 512)
    workers: int = 1
    prep_ms: float = 2.0
    prep_wait_ms: float = 0.0
    reads: int = 0
    compute_ms: float = 5.0
    device_ms: float = 10.0
    late_ms: float = 0.0
    late_rank: int = -1
    late_every: int = 1
    late_turns: bool = False
    burst_ms: float = 0.0
    burst_every: int = 1
    slow_worker_ms: float = 0.0
    in_order: bool = True
    parted: bool = False
    passes: int = 1
    between_ms: float = 0.0
    between_wait_ms: tuple[float, ...] = (0.0,)
    compress: bool = False
    file: str = ""


def spin(milliseconds: float) -> None:
    """Burn so much CPU."""
    until = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < until:
        pass


def decode(milliseconds: float) -> None:
    """Burn so much CPU without the interpreter's lock, as decoders of images do."""
    until = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < until:
        zlib.crc32(ENCODED)


class Samples(Dataset[torch.Tensor]):
    """One sample is one batch."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __len__(self) -> int:
        return self.config.steps // self.config.passes

    def __getitem__(self, index: int) -> torch.Tensor:
        config = self.config
        if config.reads:
            read_pieces(config.file, places(config.file)[index * config.reads : (index + 1) * config.reads])
        decode(config.prep_ms)
        more_ms = config.burst_ms if index % config.burst_every == config.burst_every - 1 else 0.0
        worker = get_worker_info()
        if worker is not None and worker.id == 1:
            more_ms += config.slow_worker_ms
        if config.prep_wait_ms + more_ms:
            time.sleep((config.prep_wait_ms + more_ms) / 1e3)
        return torch.ones(8, 16)


class Parts(IterableDataset[torch.Tensor]):
    """The same batches, as a part of each worker that never ends."""

    def __init__(self, config: Config) -> None:
        self.samples = Samples(config)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.samples.__getitem__, itertools.count())


@functools.cache
def places(path: str) -> list[int]:
    """Where a job reads in a file, one place after the other: none is near the one before."""
    found = list(range(0, os.path.getsize(path), PLACE_BYTES))
    random.Random(0).shuffle(found)
    return found


def read_pieces(path: str, begins: list[int]) -> None:
    """Read a piece of each, from memory or from storage; nothing is read ahead."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for begin in begins:
        os.pread(descriptor, PIECE_BYTES, begin)
    os.close(descriptor)


class Model(torch.nn.Module):
    """Parameters of chosen sizes; computing takes as long as it is asked to."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layers = torch.nn.ParameterList(torch.zeros(kib * 256) for kib in config.gradient_kib)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        spin(self.config.compute_ms)
        total = batch.mean()
        for layer in self.layers:
            total = total + layer.sum()
        return total


def reduce_at_once(model: Model, groups: list[Any], step: int, late_ms: float) -> None:
    """Reduce each gradient in its own group; work between their launches, and wait when all of them are under way."""
    config, works = model.config, []
    for parameter, group in zip(model.parameters(), groups, strict=True):
        if works:
            spin(config.between_ms)
            time.sleep((config.between_wait_ms[step % len(config.between_wait_ms)] + late_ms) / 1e3)
        works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
    for work in works:
        work.wait()


def main() -> None:
    """Train."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    config = Config(**options)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bare = Model(config)
    model = torch.nn.parallel.DistributedDataParallel(bare, bucket_cap_mb=4) if config.loop == "ddp" else bare
    if config.compress:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01)
    order = {} if config.in_order else {"in_order": False}  # torch 2.5 has no such option
    samples = Parts(config) if config.parted else Samples(config)
    loader = DataLoader(samples, batch_size=None, num_workers=config.workers, **order)
    groups = [dist.new_group() for _ in config.gradient_kib] if config.loop == "groups" else []
    dist.barrier()
    batches = itertools.chain.from_iterable(itertools.repeat(loader, config.passes))
    for step, batch in enumerate(itertools.islice(batches, config.steps)):
        loss = model(batch)
        if config.device_ms:
            time.sleep(config.device_ms / 1e3)
        late_rank = step // config.late_every % config.ranks if config.late_turns else config.late_rank
        late_ms = config.late_ms if rank == late_rank and step % config.late_every == 0 else 0.0
        if config.loop != "groups":
            time.sleep(late_ms / 1e3)
        loss.backward()
        if config.loop == "manual":
            for parameter in bare.parameters():
                dist.all_reduce(parameter.grad)
        if config.loop == "groups":
            reduce_at_once(bare, groups, step, late_ms)
            dist.all_reduce(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    # gloo's threads need the interpreter once more to drop the last collective.
    time.sleep(0.1)


if __name__ == "__main__":
    main()
