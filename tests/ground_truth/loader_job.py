"""A training loop whose samples are slow in one of six ways. Prints its mean step in ms, warm-up left out.

python loader_job.py KIND WORKERS STEPS FOLDER
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BATCH, WARMUP = 8, 5
GROUPS = 64


class Slow(Dataset):  # type: ignore[type-arg]
    """Samples of 256 floats, each made in the slow way of its kind."""

    def __init__(self, kind: str, length: int, folder: Path, port: int) -> None:
        self.kind, self.length, self.folder, self.port = kind, length, folder, port

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        getattr(self, f"_{self.kind}")(index)
        return torch.zeros(256)

    def _sleep(self, index: int) -> None:
        time.sleep(0.005)

    def _blocked(self, index: int) -> None:
        """Wait for another thread, as a decoder with a pool of its own makes a caller do."""
        done = threading.Event()
        timer = threading.Timer(0.005, done.set)
        timer.start()
        done.wait()

    def _decode(self, index: int) -> None:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass

    def _network(self, index: int) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"x")
            while connection.recv(4096):
                pass

    def _columns(self, index: int) -> None:
        """Read the whole row group that a sample lies in, as a job that treats columns as rows does."""
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(self.folder / "table.parquet")
        table.read_row_group(index * 7 % GROUPS)

    def _mapped(self, index: int) -> None:
        size = 64 * 1024
        mapped = np.memmap(self.folder / "mapped.bin", dtype=np.uint8, mode="r")
        first = index * 37 % (len(mapped) // size) * size
        int(mapped[first : first + size : 4096].sum())


def serve() -> int:
    """Answer each connection after 5 ms, in a process of its own."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(64)
    port = int(server.getsockname()[1])
    if os.fork() == 0:

        def answer(connection: socket.socket) -> None:
            connection.recv(1)
            time.sleep(0.005)
            connection.sendall(b"y" * 1000)
            connection.close()

        os.setsid()
        parent = os.getppid()
        server.settimeout(1.0)
        while os.getppid() == parent:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            threading.Thread(target=answer, args=(connection,), daemon=True).start()
        os._exit(0)
    server.close()
    return port


def prepare(kind: str, folder: Path) -> None:
    """Write what the kind reads."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "columns" and not (folder / "table.parquet").exists():
        import pyarrow
        import pyarrow.parquet

        values = np.random.default_rng(0).standard_normal(GROUPS * 40_000)
        table = pyarrow.table({"a": values, "b": values[::-1].copy()})
        pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=40_000)
    if kind == "mapped":
        path = folder / "mapped.bin"
        if not path.exists():
            path.write_bytes(os.urandom(256 << 20))
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main(kind: str, workers: int, steps: int, folder: Path) -> None:
    """Train and print the mean length of a step."""
    torch.set_num_threads(1)
    prepare(kind, folder)
    port = serve() if kind == "network" else 0
    model = torch.nn.Linear(256, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lengths, last = [], time.perf_counter()
    for batch in DataLoader(Slow(kind, BATCH * (steps + WARMUP), folder, port), batch_size=BATCH, num_workers=workers):
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.008)
        optimizer.step()
        now = time.perf_counter()
        lengths.append(now - last)
        last = now
    print(f"step_ms {1e3 * sum(lengths[WARMUP:]) / len(lengths[WARMUP:]):.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
