"""Small training jobs that are slow in one chosen way and keep their own clock. They know nothing of stashtrace.

    python jobs.py --clock FOLDER [--steps 40] [--loader sleep --loader-ms 4] [--late 1:compute:20] ...

One process is one rank (RANK and WORLD_SIZE of the environment). It writes FOLDER/rank-R.jsonl, one line per step:
{"rank", "step", "kind", "begin_ns", "end_ns", "laps": [[name, begin_ns, end_ns, queued_ns], ...], "batches",
"idle_ns", "queued_ns"}, of time.monotonic_ns. Laps are "wait" (in next(loader)), "collective", "save", "sleep",
"blocked"; the rest of a step is compute, but for ``idle_ns`` (neither on a CPU nor in the queue for one) and
``queued_ns`` of it. Batches are [loader, epoch, number, begin_ns, end_ns] of a wait. What the data set does stands in
FOLDER/made-R-PID.jsonl, a line for each batch: [begin_ns, end_ns, cpu_ns, queued_ns, loader, number].
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import io
import itertools
import json
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WIDTH = 256
PIECE_BYTES = 512 << 10


def thread_clocks() -> tuple[int, int]:
    """CPU time and run-queue time of this thread, ns."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            queued = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        queued = 0  # a kernel without schedstats: the queue counts as idle time then
    return time.thread_time_ns(), queued


class Clock:
    """Laps of the step thread, without a gap between steps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"rank-{RANK}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.step = 0
        self.epochs: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """A step begins now."""
        self.laps: list[tuple[str, int, int, int]] = []
        self.batches: list[tuple[str, int, int, int, int]] = []
        self._inside = [0, 0, 0]
        self._clocks = thread_clocks()
        self.begin_ns = time.monotonic_ns()

    @contextlib.contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """What happens inside is not compute."""
        clocks, begin = thread_clocks(), time.monotonic_ns()
        yield
        self.add(name, begin, time.monotonic_ns(), clocks)

    def add(self, name: str, begin_ns: int, end_ns: int, clocks: tuple[int, int]) -> None:
        """A lap that has just ended; the clocks of the thread are those of its begin."""
        now = thread_clocks()
        self.laps.append((name, begin_ns, end_ns, now[1] - clocks[1]))
        for n, spent in enumerate((end_ns - begin_ns, now[0] - clocks[0], now[1] - clocks[1])):
            self._inside[n] += spent

    def end_step(self, kind: str) -> None:
        """The update, or what else ends a step, has just returned."""
        end, now = time.monotonic_ns(), thread_clocks()
        cpu = now[0] - self._clocks[0] - self._inside[1]
        queued = max(now[1] - self._clocks[1] - self._inside[2], 0)
        idle = max(end - self.begin_ns - self._inside[0] - cpu - queued, 0)
        row = {
            "rank": RANK,
            "step": self.step,
            "kind": kind,
            "begin_ns": self.begin_ns,
            "end_ns": end,
            "laps": self.laps,
            "batches": self.batches,
            "idle_ns": idle,
            "queued_ns": queued,
        }
        os.write(self._file, (json.dumps(row) + "\n").encode())
        self.step += 1
        self.restart()
        self.begin_ns = end


def burn(milliseconds: float) -> None:
    """CPU time, not wall time: a neighbour on the core does not shorten it."""
    end = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end:
        pass


# What the loaders do for a sample: each makes a function of (index); made once per process.


def _sleeping(options: argparse.Namespace) -> Callable[[int], None]:
    return lambda index: time.sleep(options.loader_ms / 1e3)


def _blocking(options: argparse.Namespace) -> Callable[[int], None]:
    never = threading.Event()
    return lambda index: never.wait(options.loader_ms / 1e3) or None


def _piped(options: argparse.Namespace) -> Callable[[int], None]:
    """A thread of the process feeds a pipe slowly; who reads it blocks."""
    out, into = os.pipe()

    def feed() -> None:
        while True:
            time.sleep(options.loader_ms / 1e3)
            os.write(into, b"x")

    threading.Thread(target=feed, daemon=True).start()

    def read(index: int) -> None:
        os.read(out, 1)

    return read


def _decoding(options: argparse.Namespace) -> Callable[[int], None]:
    return lambda index: burn(options.loader_ms)


def _jpeg(options: argparse.Namespace) -> Callable[[int], None]:
    import numpy
    from PIL import Image

    pixels = numpy.random.default_rng(0).integers(0, 255, (512, 512, 3), dtype=numpy.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")

    def decode(index: int) -> None:
        Image.open(io.BytesIO(buffer.getvalue())).convert("RGB").load()

    return decode


def _remote(options: argparse.Namespace) -> Callable[[int], None]:
    """Objects of a server that takes its time."""
    connection = socket.create_connection(("127.0.0.1", options.port))

    def fetch(index: int) -> None:
        connection.sendall(b"x")
        left = PIECE_BYTES
        while left:
            left -= len(connection.recv(min(left, 1 << 16)))

    return fetch


def _columns(options: argparse.Namespace) -> Callable[[int], None]:
    import pyarrow.parquet

    path = options.clock / "columns.parquet"
    groups = pyarrow.parquet.ParquetFile(path).num_row_groups

    def read(index: int) -> None:
        pyarrow.parquet.ParquetFile(path).read_row_group(index % groups, columns=["a", "b"]).to_pydict()

    return read


def _cold(path: Path, index: int) -> tuple[int, int]:
    descriptor = os.open(path, os.O_RDONLY)
    offset = index * PIECE_BYTES % os.fstat(descriptor).st_size
    os.posix_fadvise(descriptor, offset, PIECE_BYTES, os.POSIX_FADV_DONTNEED)
    return descriptor, offset


def _reading(options: argparse.Namespace) -> Callable[[int], None]:
    def read(index: int) -> None:
        descriptor, offset = _cold(options.clock / "ballast.bin", index)
        os.pread(descriptor, PIECE_BYTES, offset)
        os.close(descriptor)

    return read


def _mapping(options: argparse.Namespace) -> Callable[[int], None]:
    def touch(index: int) -> None:
        descriptor, offset = _cold(options.clock / "ballast.bin", index)
        with mmap.mmap(descriptor, PIECE_BYTES, access=mmap.ACCESS_READ, offset=offset) as pages:
            pages.madvise(mmap.MADV_RANDOM)
            sum(pages[:: mmap.PAGESIZE])
        os.close(descriptor)

    return touch


LOADERS: dict[str, Callable[[argparse.Namespace], Callable[[int], None]]] = {
    "none": lambda options: lambda index: None,
    "sleep": _sleeping,
    "block": _blocking,
    "pipe": _piped,
    "decode": _decoding,
    "jpeg": _jpeg,
    "remote": _remote,
    "columns": _columns,
    "read": _reading,
    "map": _mapping,
}


class Samples(Dataset[Any]):
    """A sample costs what the chosen loader costs; the clock has a line for each batch, whose samples come in order."""

    def __init__(self, options: argparse.Namespace, name: str, count: int) -> None:
        self.options, self.name, self.count = options, name, count
        self._prepare: Callable[[int], None] | None = None
        self._owner = self._file = -1
        self._begin = (0, 0, 0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self._owner != os.getpid():
            self._owner, self._prepare = os.getpid(), LOADERS[self.options.loader](self.options)
            made = self.options.clock / f"made-{RANK}-{os.getpid()}.jsonl"
            self._file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        number, place = divmod(index, self.options.batch)
        if place == 0:
            self._begin = (*thread_clocks(), time.monotonic_ns())
        if self._prepare is not None:
            self._prepare(index)
        sample = torch.ones(WIDTH)
        whole = (sample, [str(n) for n in range(self.options.luggage)]) if self.options.luggage else sample
        if place == self.options.batch - 1:
            end, now = time.monotonic_ns(), thread_clocks()
            cpu, queued, begin = self._begin
            row = (begin, end, now[0] - cpu, now[1] - queued, self.name, number)
            os.write(self._file, (json.dumps(row) + "\n").encode())
        return whole

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepare": None, "_owner": -1, "_file": -1}


def first_of_each(samples: list[Any]) -> Any:
    """Collate; luggage goes along as it is."""
    if isinstance(samples[0], tuple):
        return torch.stack([s[0] for s in samples]), [s[1] for s in samples]
    return torch.stack(samples)


class Job:
    """The loop, and the faults of this rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.clock = options, Clock(options.clock)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(options.layers)]
        self.model: torch.nn.Module = torch.nn.Sequential(*layers)
        if WORLD > 1 and options.reduce == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.ready = (0, (0, 0))
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._note_ready)
        self.late = [spec.split(":") for spec in options.late]
        self.heap: list[object] = []
        if any(kind == "gc" and int(rank) == RANK for rank, kind, _ in self.late):
            self.heap = [[n] for n in range(600_000)]
            gc.disable()
        self.weights = torch.zeros(options.save_mib << 20, dtype=torch.uint8)
        self.bulk = torch.zeros(options.reduce_kib << 8)

    def _note_ready(self, _: torch.Tensor) -> None:
        self.ready = (time.monotonic_ns(), thread_clocks())

    def loader(self, name: str, batches: int) -> DataLoader[Any]:
        o = self.options
        return DataLoader(
            Samples(o, name, batches * o.batch),
            o.batch,
            num_workers=o.workers,
            collate_fn=first_of_each,
            persistent_workers=o.persistent and o.workers > 0,
            multiprocessing_context=o.context if o.workers else None,
        )

    def batches(self, loader: DataLoader[Any], epoch: int = 0) -> Iterator[torch.Tensor]:
        with self.clock.lap("wait"):
            iterator = iter(loader)
        name = loader.dataset.name  # type: ignore[attr-defined]
        for number in itertools.count():
            batch = None  # to free the last one is not part of the wait for the next
            begin = time.monotonic_ns()
            with self.clock.lap("wait"):
                batch = next(iterator, None)
            if batch is None:
                return
            self.clock.batches.append((name, epoch, number, begin, time.monotonic_ns()))
            yield batch[0] if isinstance(batch, list | tuple) else batch

    def faults(self, step: int) -> None:
        """Before the backward: what this rank does longer than others, and what all do."""
        o = self.options
        if o.sleep_ms:
            with self.clock.lap("sleep"):
                time.sleep(o.sleep_ms / 1e3)
        if o.block_ms:
            with self.clock.lap("blocked"):
                threading.Event().wait(o.block_ms / 1e3)
        burn(o.compute_ms)
        for rank, kind, milliseconds in self.late:
            turn = step % WORLD == RANK if rank == "turn" else int(rank) == RANK
            if turn and step % o.late_every == 0:
                self.be_late(kind, float(milliseconds))

    def kill(self, step: int) -> None:
        """By SIGKILL, as the kernel does where memory runs out: the oldest worker of this rank, or the rank itself."""
        who, _, at = self.options.kill.partition(":")
        if not who or step != int(at):
            return
        if who == "worker":
            os.kill(min(child.pid or 0 for child in multiprocessing.active_children()), signal.SIGKILL)
        elif int(who) == RANK:
            os.kill(os.getpid(), signal.SIGKILL)

    def be_late(self, kind: str, milliseconds: float) -> None:
        if kind == "sleep":
            with self.clock.lap("sleep"):
                time.sleep(milliseconds / 1e3)
        elif kind == "block":
            with self.clock.lap("blocked"):
                threading.Event().wait(milliseconds / 1e3)
        elif kind == "compute":
            burn(milliseconds)
        elif kind == "gc":
            gc.collect()
        elif kind == "save":
            self.save()

    def save(self) -> None:
        with self.clock.lap("save"):
            torch.save({"weights": self.weights}, self.options.clock / f"checkpoint-{RANK}.pt")

    def train_step(self, step: int, batch: torch.Tensor, *, update: bool = True) -> None:
        loss = self.model(batch).square().mean()
        self.faults(step)
        self.kill(step)
        loss.backward()
        if WORLD > 1 and self.options.reduce == "ddp":
            self.clock.add("collective", self.ready[0], time.monotonic_ns(), self.ready[1])
        elif WORLD > 1:
            for tensor in [self.bulk] if self.options.reduce_kib else [p.grad for p in self.model.parameters()]:
                with self.clock.lap("collective"):
                    dist.all_reduce(tensor)
        if not update:
            return
        if self.options.save_every and (step + 1) % self.options.save_every == 0 and RANK == 0:
            self.save()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clock.end_step("train")

    def run(self) -> None:
        """Train, with validation after each epoch where asked for."""
        o = self.options
        per_epoch = -(-o.steps // o.epochs) * o.accumulate
        loader = self.loader("train", per_epoch)
        validation = self.loader("validation", o.validate) if o.validate else None
        self.clock.restart()
        number = 0
        for epoch in range(o.epochs):
            for batch in self.batches(loader, epoch):
                number += 1
                self.train_step(number // o.accumulate, batch, update=number % o.accumulate == 0)
            if validation is not None:
                self.model.eval()
                self.forward_only(validation, "validation", epoch)
                self.model.train()

    def forward_only(self, loader: DataLoader[Any], kind: str, epoch: int = 0) -> None:
        with torch.no_grad():
            for batch in self.batches(loader, epoch):
                self.model(batch)
                burn(self.options.forward_ms)
                self.clock.end_step(kind)

    def rollout(self) -> None:
        """Many forwards without gradient, then a few updates on what they gave: one iteration."""
        o = self.options
        self.clock.restart()
        for _ in range(o.steps):
            seen = []
            with torch.no_grad():
                state = torch.ones(1, WIDTH)
                for _ in range(o.forwards):
                    seen.append(self.model(state))
                    if o.sleep_ms:
                        with self.clock.lap("sleep"):
                            time.sleep(o.sleep_ms / 1e3)
                    burn(o.forward_ms)
            batch = torch.cat(seen)
            for _ in range(o.updates):
                self.model(batch).square().mean().backward()
                burn(o.compute_ms)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.clock.end_step("iteration")


def serve(delay_s: float) -> int:
    """A process that answers each request after a while; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    parent = os.getpid()
    if os.fork():
        listener.close()
        return port
    answer = bytes(PIECE_BYTES)

    def attend(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(1):
                time.sleep(delay_s)
                connection.sendall(answer)

    def leave() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=leave, daemon=True).start()
    while True:
        connection = listener.accept()[0]
        threading.Thread(target=attend, args=(connection,), daemon=True).start()


def prepare(options: argparse.Namespace) -> None:
    """Files and servers that the chosen loader needs."""
    options.clock.mkdir(parents=True, exist_ok=True)
    if options.loader == "remote":
        options.port = serve(options.loader_ms / 1e3)
    if options.loader in ("read", "map") and RANK == 0:
        with open(options.clock / "ballast.part", "wb") as file:
            for _ in range(options.ballast_mib):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        os.replace(options.clock / "ballast.part", options.clock / "ballast.bin")
    if options.loader == "columns" and RANK == 0:
        import pyarrow
        import pyarrow.parquet

        column = list(range(40_000))
        table = pyarrow.table(dict.fromkeys("abcdefgh", column))
        pyarrow.parquet.write_table(table, options.clock / "columns.parquet", row_group_size=4_000)


def busy(kind: str) -> None:
    """A thread beside the loop."""
    while True:
        if kind == "burn":
            burn(5)
        else:
            time.sleep(0.01)


def crowd(count: int) -> None:
    """Many threads alive at once, each of which reads a little, again and again."""
    together, file = threading.Barrier(count), os.open(__file__, os.O_RDONLY)

    def read() -> None:
        together.wait()
        for number in range(100):
            os.pread(file, 64, number)
        together.wait()

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def parsed() -> argparse.Namespace:
    """Options of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--mode", choices=("train", "infer", "rollout"), default="train")
    parser.add_argument("--loader", choices=sorted(LOADERS), default="none")
    parser.add_argument("--context", choices=("fork", "spawn", "forkserver"), default=None)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--reduce", choices=("ddp", "hand"), default="hand")
    parser.add_argument("--late", action="append", default=[], metavar="RANK:KIND:MS", help="RANK may be turn")
    parser.add_argument("--late-every", type=int, default=1)
    parser.add_argument("--late-loader", default="", metavar="RANK:MS", help="this rank's samples cost this")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--kill", default="", metavar="WHO:STEP", help="worker, or the rank of this number")
    parser.add_argument("--library", default="", help="a shared library that the job loads")
    parser.add_argument("--thread", choices=("", "burn", "sleep"), default="")
    whole = {
        "steps": 40,
        "workers": 0,
        "epochs": 1,
        "batch": 4,
        "accumulate": 1,
        "layers": 4,
        "validate": 0,
        "save_every": 0,
        "save_mib": 0,
        "luggage": 0,
        "reduce_kib": 0,
        "forwards": 20,
        "updates": 4,
        "ballast_mib": 96,
        "crowd": 0,
    }
    for name, default in whole.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    for name in ("loader_ms", "compute_ms", "forward_ms", "sleep_ms", "block_ms"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    options = parsed()
    torch.set_num_threads(1)
    prepare(options)
    if options.late_loader:
        rank, milliseconds = options.late_loader.split(":")
        options.loader_ms = float(milliseconds) if int(rank) == RANK else options.loader_ms
    if WORLD > 1:
        dist.init_process_group("gloo")
        dist.barrier()
    if options.thread:
        threading.Thread(target=busy, args=(options.thread,), daemon=True).start()
    if options.crowd:
        crowd(options.crowd)
    if options.library:
        ctypes.CDLL(options.library)
    job = Job(options)
    if options.mode == "train":
        job.run()
    elif options.mode == "rollout":
        job.rollout()
    else:
        job.model.eval()
        job.clock.restart()
        job.forward_only(job.loader("inference", options.steps), "inference")
    if WORLD > 1:
        dist.destroy_process_group()
    sys.exit(options.exit_code)


if __name__ == "__main__":
    main()
