"""What a planted job does too long: kinds of work, on which ranks, in which steps, and where in the loop.

A fault is written ``RANKS:KIND:MS[:WHEN[:WHERE]]``, as in ``0:read:30``, ``1,2:sleep:40:every=20`` or
``1:python:25:from=40:update``. RANKS is a list, or ``all``. WHEN is ``always``, ``from=N``, ``until=N``, ``every=N``,
``only=N``, ``grow=N`` (from nothing in step 0 to MS in step N) or ``turn`` (the ranks of the job, one after the other).
WHERE is a point that the script names; the default is ``forward``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import os
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from stopwatch import Stopwatch

#: Lists that a full collection visits in a millisecond, about.
HEAP_LISTS_PER_MS = 2_000
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Fault:
    """One kind of work that takes too long."""

    ranks: frozenset[int]
    kind: str
    milliseconds: float
    when: str
    number: int
    where: str

    def milliseconds_in(self, step: int, world: int, rank: int) -> float:
        """Return how long it takes in a step, 0 if it does not happen."""
        n = self.number
        happens = {
            "always": True,
            "from": step >= n,
            "until": step < n,
            "every": n > 0 and step % n == n - 1,
            "only": step == n,
            "turn": step % world == rank,
            "grow": True,
        }[self.when]
        part = min(step / n, 1.0) if self.when == "grow" else 1.0
        return self.milliseconds * part if happens else 0.0


def parse_fault(text: str, world: int) -> Fault:
    """Read a fault from a word of the command line."""
    ranks, kind, milliseconds, *rest = text.split(":")
    when, _, number = (rest[0] if rest else "always").partition("=")
    members = range(world) if ranks == "all" else (int(rank) for rank in ranks.split(","))
    where = rest[1] if len(rest) > 1 else "forward"
    return Fault(frozenset(members), kind, float(milliseconds), when, int(number or 0), where)


def tokenize_text(milliseconds: float) -> int:
    """Split text into numbers of words, in plain Python, until the time is over."""
    end = time.monotonic() + milliseconds / 1e3
    vocabulary: dict[str, int] = {}
    text = "the quick brown fox jumps over the lazy dog " * 4
    total = 0
    while time.monotonic() < end:
        for word in re.split(r"\s+", text):
            total += vocabulary.setdefault(word, len(vocabulary))
    return total


def serve_slowly(server: socket.socket) -> None:
    """Answer each request after as many milliseconds as it asks for."""
    connection, _ = server.accept()
    while request := connection.recv(16):
        time.sleep(float(request) / 1e3)
        connection.sendall(b"x" * 64)


class Faults:
    """Do the faults of one rank, each timed as a piece of its kind's name."""

    def __init__(self, words: list[str], watch: Stopwatch, world: int, folder: Path) -> None:
        self.watch, self.world, self.folder = watch, world, folder
        self.faults = [f for f in (parse_fault(word, world) for word in words) if watch.rank in f.ranks]
        kinds = {fault.kind: fault.milliseconds for fault in self.faults}
        self.work: dict[str, Callable[[float], object]] = {
            "sleep": lambda ms: time.sleep(ms / 1e3),
            "python": tokenize_text,
            "garbage": lambda ms: gc.collect(),
            "matmul": self.multiply,
            "read": self.read_shard,
            "npload": self.load_array,
            "write": self.write_log,
            "socket": self.fetch_remote,
            "lock": self.wait_for_thread,
            "save": self.save_checkpoint,
            "commit": self.commit_rows,
        }
        self.heap: list[list[int]] = []
        if "garbage" in kinds:
            self.heap = [[n] for n in range(int(kinds["garbage"] * HEAP_LISTS_PER_MS))]
            gc.disable()
        self.shard = folder / f"shard-{watch.rank:04d}.bin"
        if "read" in kinds:
            self.shard.write_bytes(os.urandom(PIECE_BYTES) * 256)
        self.array = folder / f"features-{watch.rank}.npy"
        if "npload" in kinds:
            numpy.save(self.array, numpy.zeros((2_000, 1_000), dtype=numpy.float32))
        self.connection = self.connect() if "socket" in kinds else None
        self.rows = sqlite3.connect(folder / "metrics.db") if "commit" in kinds else None
        if self.rows is not None:
            self.rows.execute("CREATE TABLE IF NOT EXISTS metrics (step INTEGER, loss REAL, text TEXT)")
        self.matrix = torch.ones(256, 256)
        self.weights = torch.zeros(8 << 20)

    def strike(self, where: str, step: int) -> None:
        """Do what is planted at this point of the loop in this step."""
        for fault in self.faults:
            milliseconds = fault.milliseconds_in(step, self.world, self.watch.rank) if fault.where == where else 0.0
            if milliseconds > 0:
                with self.watch.piece(fault.kind):
                    self.work[fault.kind](milliseconds)

    def multiply(self, milliseconds: float) -> None:
        """Compute with operators of torch until the time is over."""
        end = time.monotonic() + milliseconds / 1e3
        while time.monotonic() < end:
            torch.mm(self.matrix, self.matrix)

    def read_shard(self, milliseconds: float) -> None:
        """Read a file in pieces, past the page cache, until the time is over."""
        end = time.monotonic() + milliseconds / 1e3
        with open(self.shard, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while time.monotonic() < end:
                if not file.read(PIECE_BYTES):
                    file.seek(0)

    def load_array(self, milliseconds: float) -> None:
        """Load an array with numpy again and again until the time is over."""
        end = time.monotonic() + milliseconds / 1e3
        while time.monotonic() < end:
            numpy.load(self.array)

    def write_log(self, milliseconds: float) -> None:
        """Write lines of a log, and wait for the disk each time."""
        end = time.monotonic() + milliseconds / 1e3
        with open(self.folder / "train.slowlog", "wb", buffering=0) as file:
            while time.monotonic() < end:
                file.write(b"loss 0.123456\n" * 40_000)
                os.fsync(file.fileno())

    def connect(self) -> socket.socket:
        """Start a server in a process of its own and connect to it."""
        server = socket.create_server(("127.0.0.1", 0))
        if os.fork() == 0:
            serve_slowly(server)
            os._exit(0)
        return socket.create_connection(server.getsockname())

    def fetch_remote(self, milliseconds: float) -> None:
        """Ask the server for a record."""
        if self.connection is not None:
            self.connection.sendall(f"{milliseconds:.3f}".encode())
            self.connection.recv(64)

    def wait_for_thread(self, milliseconds: float) -> None:
        """Wait for a lock that another thread holds."""
        lock = threading.Lock()
        taken = threading.Event()

        def hold() -> None:
            with lock:
                taken.set()
                time.sleep(milliseconds / 1e3)

        threading.Thread(target=hold, daemon=True).start()
        taken.wait()
        with lock:
            return

    def save_checkpoint(self, milliseconds: float) -> None:
        """Save weights with torch until the time is over."""
        end = time.monotonic() + milliseconds / 1e3
        while time.monotonic() < end:
            torch.save(self.weights[: 1 << 20], self.folder / "checkpoint.pt")

    def commit_rows(self, milliseconds: float) -> None:
        """Commit rows to a database, and wait for the disk each time."""
        end = time.monotonic() + milliseconds / 1e3
        while self.rows is not None and time.monotonic() < end:
            self.rows.execute("INSERT INTO metrics VALUES (?, ?, ?)", (self.watch.step, 0.123456, "loss " * 2_000))
            self.rows.commit()
