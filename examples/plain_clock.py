"""The example's stopwatch and its faults: what the tests compare stashtrace with.

`PlainClock` knows nothing of stashtrace. It reads CLOCK_MONOTONIC between the phases of a step and writes one
JSON line per step; in DataLoader workers it writes one line per timed piece of a sample. `Faults` makes a run
slow in one chosen way. Without `--truth` and `--inject-*` both do nothing.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import get_worker_info


class PlainClock:
    """Laps of one rank's training loop: together they cover each step without a gap.

    A step ends with `end_step`, called right after the optimizer's update. `rank-R.jsonl` then gets
    {"rank", "step", "begin_ns", "end_ns", "laps": [[name, begin_ns, end_ns], ...], "gradients_ready_ns"};
    `samples-R-PID.jsonl` gets [piece, worker, begin_ns, end_ns, own_ns] for what happens inside the data set;
    own_ns is what the thread ran or stood in the queue for a CPU, where that was asked for.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.step = 0
        self.laps: list[tuple[str, int, int]] = []
        self.gradients_ready_ns = 0
        self._files: dict[str, int] = {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        self.begin_ns = self.last_ns = time.monotonic_ns()

    def lap(self, name: str) -> None:
        """The time since the last lap was spent on `name`."""
        now = time.monotonic_ns()
        self.laps.append((name, self.last_ns, now))
        self.last_ns = now

    def end_step(self) -> None:
        """The optimizer's update has just returned."""
        if self.folder:
            row = {
                "rank": self.rank,
                "step": self.step,
                "begin_ns": self.begin_ns,
                "end_ns": self.last_ns,
                "laps": self.laps,
                "gradients_ready_ns": self.gradients_ready_ns,
            }
            self._write(f"rank-{self.rank}.jsonl", row)
        self.step += 1
        self.laps = []
        self.begin_ns = self.last_ns

    def watch_gradients(self, model: torch.nn.Module) -> None:
        """Note when the last gradient of a backward pass is there: from then on backward only waits for the others."""

        def ready(_: torch.Tensor) -> None:
            self.gradients_ready_ns = time.monotonic_ns()

        if self.folder:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(ready)

    @contextlib.contextmanager
    def sample(self, piece: str, *, own: bool = False) -> Iterator[None]:
        """Time a piece of work on a sample or batch, in whichever process it happens; with `own` also what it did."""
        if not self.folder:
            yield
            return
        before, begin = own_ns() if own else 0, time.monotonic_ns()
        yield
        end = time.monotonic_ns()
        worker = get_worker_info()
        row = (piece, worker.id if worker else -1, begin, end, own_ns() - before if own else 0)
        self._write(f"samples-{self.rank}-{os.getpid()}.jsonl", row)

    def _write(self, name: str, row: object) -> None:
        if name not in self._files:
            self._files[name] = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # type: ignore[operator]
        os.write(self._files[name], (json.dumps(row) + "\n").encode())


def own_ns() -> int:
    """Time that this thread ran or stood in the queue for a CPU: in the rest of its life it waited for something."""
    queued = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/thread-self/schedstat", encoding="ascii") as file:
        queued = int(file.read().split()[1])
    return time.thread_time_ns() + queued


class Faults:
    """Slow a run down in one way, for real: disk, processor, sleep."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self.decode_ns = options.inject_prep_ms * 1_000_000
        self.mapped = options.inject_mmap_kib > 0
        self.read_bytes = max(options.inject_fetch_kib, options.inject_mmap_kib) * 1024
        self.late_s = options.inject_straggler_ms / 1000 if rank == options.inject_rank else 0.0
        self.gap_s = options.inject_other_ms / 1000
        self.luggage_count = options.inject_handoff_items
        self.ballast = torch.zeros(options.inject_checkpoint_mib << 20, dtype=torch.uint8)
        self.cold_file = options.data / f"ballast-{rank}.bin"

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """The --inject-* switches."""
        group = parser.add_argument_group("faults, for tests and demonstrations")

        def add(name: str, default: int, text: str) -> None:
            group.add_argument(f"--inject-{name}", type=int, default=default, metavar="N", help=text)

        add("fetch-kib", 0, "read N KiB more per image, past the page cache")
        add("mmap-kib", 0, "touch N KiB more per image in a mapped file, past the page cache")
        add("prep-ms", 0, "burn N ms of CPU time per image")
        add("handoff-items", 0, "send N small Python objects along with each batch")
        add("straggler-ms", 0, "sleep N ms before the backward of --inject-rank")
        add("other-ms", 0, "sleep N ms before the backward of every rank")
        add("rank", 1, "the rank that comes late")
        add("checkpoint-mib", 0, "make each checkpoint N MiB larger")

    def prepare(self) -> None:
        """Write the large file that `slow_read` reads piece by piece."""
        size = 64 * self.read_bytes
        if size and not (self.cold_file.exists() and self.cold_file.stat().st_size == size):
            with open(self.cold_file, "wb") as file:
                for _ in range(64):
                    file.write(os.urandom(self.read_bytes))
                os.fsync(file.fileno())

    def slow_read(self, index: int, clock: PlainClock) -> None:
        """Read a piece of a large file from the disk: it is thrown out of the page cache first."""
        file = os.open(self.cold_file, os.O_RDONLY)
        offset = index % 64 * self.read_bytes
        os.posix_fadvise(file, offset, self.read_bytes, os.POSIX_FADV_DONTNEED)
        if self.mapped:
            # Mapped again each time: the kernel keeps the pages that somebody has mapped.
            with mmap.mmap(file, self.read_bytes, access=mmap.ACCESS_READ, offset=offset) as pages:
                pages.madvise(mmap.MADV_RANDOM)  # page by page: read-ahead would hide the wait
                with clock.sample("cold_touch", own=True):
                    sum(pages[:: mmap.PAGESIZE])
        else:
            with clock.sample("cold_read"):
                piece = os.pread(file, self.read_bytes, offset)
            del piece  # after the reading: giving megabytes back takes time
        os.close(file)

    def slow_decode(self) -> None:
        """Burn CPU time (not wall time: a neighbour on the core does not shorten it)."""
        end = time.thread_time_ns() + self.decode_ns
        while self.decode_ns and time.thread_time_ns() < end:
            pass

    def before_backward(self) -> None:
        """Do nothing for a while, on one rank or on all."""
        if self.late_s or self.gap_s:
            time.sleep(self.late_s + self.gap_s)

    def luggage(self) -> list[object]:
        """A crowd of small Python objects for each batch: they cost time to pickle and to unpickle."""
        return [str(number) for number in range(self.luggage_count)]
