"""A data-parallel job of ``bench_faults.py`` in which one rank may be slow; every rank writes down its own clock.

    fault_job.py CONFIG OUT        CONFIG: JSON of ``Config``; OUT: folder for clock-RANK.json

Most of a step is sleep, as if a device worked, so that four ranks fit on two cores. A fault takes the time that it is
asked for by a clock, not by an amount of work; of checkpoints and garbage collection the clock says what they took.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

BASE_S, BATCH_S = 0.030, 0.004
#: Of smaller pieces the page cache keeps more than it was asked to drop.
CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Config:
    """What a job does.

    Attributes
    ----------
    loop
        ``ddp``, ``manual`` (an all-reduce for each gradient) or ``accumulate`` (two micro-batches an update).
    kind
        ``item``, ``disk``, ``prep``, ``sleep``, ``compute``, ``gc``, ``save``, ``lock`` or empty.
    size_ms
        How long the fault keeps the rank in each ``every``-th step.
    lengths
        Whether the work of each rank and step varies as that of sequences does.
    """

    loop: str
    ranks: int
    workers: int = 0
    kind: str = ""
    rank: int = -1
    size_ms: float = 0.0
    every: int = 1
    steps: int = 30
    lengths: bool = False
    seed: int = 0
    file: str = ""


def spin(seconds: float) -> None:
    """Burn so much CPU."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Samples(Dataset[torch.Tensor]):
    """One sample is one batch."""

    def __init__(self, config: Config, rank: int) -> None:
        self.config, self.slow = config, rank == config.rank
        self.micro = 2 if config.loop == "accumulate" else 1

    def __len__(self) -> int:
        return self.config.steps * self.micro

    def __getitem__(self, index: int) -> torch.Tensor:
        config = self.config
        time.sleep(BATCH_S)
        if self.slow and config.kind in ("item", "disk", "prep") and faulty(config, index // self.micro):
            self.fault(self.length_s())
        return torch.randn(8, 128)

    def length_s(self) -> float:
        """A worker has the time of a step for nothing, and each of several as often: only what goes beyond delays."""
        config = self.config
        asked = config.size_ms / 1e3 / self.micro
        if not config.workers:
            return asked
        return config.workers * ((BASE_S + 0.008) / self.micro + asked) - BATCH_S

    def fault(self, seconds: float) -> None:
        """Keep the maker of this batch."""
        if self.config.kind == "item":
            time.sleep(seconds)
        elif self.config.kind == "prep":
            spin(seconds)
        else:
            until = time.perf_counter() + seconds
            descriptor = os.open(self.config.file, os.O_RDONLY)
            size = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            while time.perf_counter() < until:
                at = random.randrange(size // CHUNK_BYTES) * CHUNK_BYTES
                os.posix_fadvise(descriptor, at, CHUNK_BYTES, os.POSIX_FADV_DONTNEED)
                os.pread(descriptor, CHUNK_BYTES, at)
            os.close(descriptor)


def faulty(config: Config, step: int) -> bool:
    """Whether the fault happens in a step."""
    return step % config.every == config.every - 1


class Holder:
    """A thread that holds a lock for as long as it is asked to."""

    def __init__(self) -> None:
        self.lock, self.wanted, self.held = threading.Lock(), threading.Semaphore(0), threading.Semaphore(0)
        self.seconds = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.wanted.acquire()
            with self.lock:
                self.held.release()
                time.sleep(self.seconds)

    def keep(self, seconds: float) -> None:
        """Have the lock taken, then want it."""
        self.seconds = seconds
        self.wanted.release()
        self.held.acquire()
        with self.lock:
            pass


class Faults:
    """What keeps the step thread itself."""

    def __init__(self, config: Config, rank: int, out: Path) -> None:
        self.config, self.mine, self.out = config, rank == config.rank, out
        size_ms = config.size_ms if self.mine else 0.0
        self.heap: list[object] = []
        if config.kind == "gc" and self.mine:
            gc.freeze()  # torch alone would take longer
            while collection_ms() < size_ms:
                self.heap += [[i] for i in range(50_000)]
        self.weights = torch.zeros(int(size_ms * 1.5e6) if config.kind == "save" else 0, dtype=torch.uint8)
        self.holder = Holder() if config.kind == "lock" else None

    def happen(self, step: int) -> None:
        """Once a step, before the backward."""
        config = self.config
        if not self.mine or not faulty(config, step):
            return
        seconds = config.size_ms / 1e3
        if config.kind == "sleep":
            time.sleep(seconds)
        elif config.kind == "gc":
            gc.collect()
        elif config.kind == "save":
            torch.save({"weights": self.weights}, self.out / "model.pt")
        elif config.kind == "lock" and self.holder is not None:
            self.holder.keep(seconds)


def collection_ms() -> float:
    begin = time.perf_counter()
    gc.collect()
    return (time.perf_counter() - begin) * 1e3


class Model(torch.nn.Module):
    """Some layers; the forward takes longer where it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
        self.extra_s = 0.0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        spin(self.extra_s)
        found: torch.Tensor = self.layers(batch).square().mean()
        return found


def extra(config: Config, rank: int, step: int, lengths: random.Random) -> float:
    """Seconds that this rank computes in this step beyond what all do."""
    if config.lengths:
        # Lengths of texts: most are short, some are several times longer.
        return min(0.004 * lengths.lognormvariate(0.0, 0.8), 0.030)
    if config.kind == "compute" and rank == config.rank and faulty(config, step):
        return config.size_ms / 1e3
    return 0.0


def main() -> None:
    """Train, and write the clock."""
    config, out = Config(**json.loads(sys.argv[1])), Path(sys.argv[2])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    gc.disable()
    bare = Model()
    model = bare if config.loop == "manual" else torch.nn.parallel.DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01)
    options = {"prefetch_factor": 1, "multiprocessing_context": "fork"} if config.workers else {}
    loader = DataLoader(Samples(config, rank), batch_size=None, num_workers=config.workers, **options)
    faults, lengths = Faults(config, rank, out), random.Random(1000 * config.seed + rank)
    micro = 2 if config.loop == "accumulate" else 1
    clock: list[dict[str, int]] = []
    dist.barrier()
    batches = iter(loader)
    for step in range(config.steps):
        begin = time.perf_counter_ns()
        cpu = time.thread_time_ns()
        for part in range(micro):
            batch = next(batches)
            bare.extra_s = extra(config, rank, step, lengths) / micro
            last = part == micro - 1
            with contextlib.nullcontext() if last or config.loop == "manual" else no_sync(model):
                loss = model(batch)
                time.sleep(BASE_S / micro)
                if last:
                    faults.happen(step)
                    arrive = time.perf_counter_ns()
                    spent = time.thread_time_ns() - cpu
                loss.backward()
        if config.loop == "manual":
            for parameter in bare.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        clock.append({"step": step, "begin_ns": begin, "arrive_ns": arrive, "cpu_ns": spent})
    end = time.perf_counter_ns()
    (out / f"clock-{rank}.json").write_text(json.dumps({"steps": clock, "end_ns": end}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


@contextlib.contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Without the all-reduce of DDP."""
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
    with model.no_sync():
        yield


if __name__ == "__main__":
    main()
