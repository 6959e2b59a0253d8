"""A small job of two or three ranks on gloo, in which one thing goes wrong, or takes long, at one step.

    torchrun ... job.py SCENE FOLDER [STEP]      or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set

The rank that stops getting on writes CLOCK_MONOTONIC into FOLDER/began just before it does.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

SCENE, FOLDER = sys.argv[1], Path(sys.argv[2])
AT_STEP = int(sys.argv[3]) if len(sys.argv) > 3 else 8
STEPS, LONG_S = AT_STEP + 6, 14.0
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FIFO = FOLDER / "queue.fifo"


class Numbers(Dataset):  # type: ignore[type-arg]
    """Samples of nothing, of which one may be stuck."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if RANK == 1 and index == 12:
            if SCENE in ("worker_read", "worker_of_eight"):
                began()
                os.read(os.open(FIFO, os.O_RDWR), 1)
            elif SCENE == "worker_stopped":
                began()
                os.kill(os.getpid(), signal.SIGSTOP)
            elif SCENE == "long_first_batch":
                began()
                spin(LONG_S)
        return torch.full((16,), float(index))


def began() -> None:
    """Note the moment after which nothing gets on."""
    part = FOLDER / f"began.{RANK}"
    part.write_text(str(time.monotonic_ns()))
    os.replace(part, FOLDER / "began")


def spin(seconds: float) -> int:
    """Compute for some time."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        count += sum(range(1000))
    return count


# What goes wrong on rank 1 (or 2 of three), between two steps.


def endless_loop() -> None:
    count = 0
    while True:
        count += 1


def read_fifo() -> None:
    os.read(os.open(FIFO, os.O_RDWR), 1)


def open_fifo() -> None:
    with open(FIFO, "rb") as file:
        file.read(1)


def take_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hold_gil() -> None:
    def flush() -> None:
        ctypes.PyDLL(None).sleep(1000)

    threading.Thread(target=flush, name="logger", daemon=True).start()
    while True:
        sum(range(100))


def queue_of_dead_worker() -> None:
    asked, made = multiprocessing.Queue(), multiprocessing.Queue()  # type: ignore[var-annotated]
    worker = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    worker.start()
    asked.put(1)
    made.get()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def receive_of_socket() -> None:
    here, _there = socket.socketpair()
    here.recv(1)


def accept_on_socket() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.accept()


def wait_for_child() -> None:
    subprocess.run(["sleep", "1000"], check=False)


def lock_file() -> None:
    with open(FOLDER / "index.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def sleep_long() -> None:
    time.sleep(1000)


def wait_for_store() -> None:
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    store.wait(["never"])


def join_thread() -> None:
    threading.Thread(target=time.sleep, args=(1000,), name="upload").start()
    for thread in threading.enumerate():
        if thread.name == "upload":
            thread.join()


BETWEEN: dict[str, Callable[[], None]] = {
    "loop": endless_loop,
    "read": read_fifo,
    "open": open_fifo,
    "lock": take_lock,
    "gil": hold_gil,
    "dead_worker": queue_of_dead_worker,
    "sigstop": stop,
    "recv": receive_of_socket,
    "accept": accept_on_socket,
    "child": wait_for_child,
    "flock": lock_file,
    "sleep": sleep_long,
    "store": wait_for_store,
    "left_early": join_thread,
}


# What takes long on rank 1 and is no hang.


def long_checkpoint() -> None:
    end = time.monotonic() + LONG_S
    with open(FOLDER / "model.pt", "wb") as file:
        while time.monotonic() < end:
            file.write(os.urandom(4 << 20))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.4)


def long_copy() -> None:
    script = (
        "import os, sys, time\n"
        "end, out = time.monotonic() + float(sys.argv[2]), open(sys.argv[1], 'wb')\n"
        "while time.monotonic() < end:\n    out.write(os.urandom(4 << 20)); out.flush(); time.sleep(0.3)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(FOLDER / "copy.pt"), str(LONG_S)], check=True)


def long_compilation() -> None:
    script = (
        "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: sum(range(999))"
    )
    subprocess.run([sys.executable, "-c", script, str(LONG_S)], check=True)


def long_metrics() -> None:
    spin(LONG_S)


def long_compression() -> None:
    end = time.monotonic() + LONG_S
    thread = threading.Thread(
        target=lambda: [zlib.compress(os.urandom(1 << 22), 6) for _ in iter(lambda: time.monotonic() < end, False)]
    )
    thread.start()
    thread.join()


def long_download() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    end = time.monotonic() + LONG_S

    def send() -> None:
        there = socket.create_connection(server.getsockname())
        while time.monotonic() < end:
            there.sendall(bytes(1 << 16))
            time.sleep(0.02)
        there.close()

    threading.Thread(target=send, name="sender", daemon=True).start()
    here, _ = server.accept()
    while here.recv(1 << 16):
        pass


def long_evaluation() -> None:
    model, end = torch.nn.Linear(16, 16), time.monotonic() + LONG_S
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.ones(16))
            time.sleep(0.2)


def long_read() -> None:
    data = FOLDER / "shard.bin"
    data.write_bytes(bytes(64 << 20))
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        with open(data, "rb") as file:
            while file.read(1 << 20) and time.monotonic() < end:
                time.sleep(0.1)


LONG: dict[str, Callable[[], None]] = {
    "long_checkpoint": long_checkpoint,
    "long_copy": long_copy,
    "long_compilation": long_compilation,
    "long_metrics": long_metrics,
    "long_compression": long_compression,
    "long_download": long_download,
    "long_evaluation": long_evaluation,
    "long_read": long_read,
    "long_first_step": long_metrics,
}


def train() -> None:
    """Train; at one step, the scene happens."""
    dist.init_process_group("gloo")
    groups = {"a": dist.new_group(list(range(WORLD))), "b": dist.new_group(list(range(WORLD)))}
    pairs = {pair: dist.new_group(list(pair)) for pair in ((0, 1), (1, 2))} if WORLD == 3 else {}
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    gradient = torch.zeros(1024)
    workers = {"worker_read": 1, "worker_of_eight": 8, "worker_stopped": 1, "long_first_batch": 1}.get(SCENE, 0)
    batches = iter(DataLoader(Numbers(), batch_size=2, num_workers=workers)) if workers else None
    held = os.open(FOLDER / "index.lock", os.O_RDWR | os.O_CREAT)
    if SCENE == "flock" and RANK == 0:
        fcntl.flock(held, fcntl.LOCK_EX)
    for step in range(STEPS):
        batch = next(batches) if batches is not None else torch.ones(2, 16)
        loss = model(batch).sum()
        loss.backward()
        at = step == (0 if SCENE == "long_first_step" else AT_STEP)
        late = RANK == WORLD - 1
        if at and late and SCENE in BETWEEN:
            began()
            BETWEEN[SCENE]()
        if at and late and SCENE in LONG:
            began()
            LONG[SCENE]()
        if at:
            communicate_wrongly(groups, pairs, gradient)
        if not (at and late and SCENE == "swallowed"):
            with contextlib.suppress(ValueError):
                dist.all_reduce(gradient)
        else:
            began()
        optimizer.step()
        optimizer.zero_grad()
        if not (at and late and SCENE == "no_barrier"):
            dist.barrier()
        else:
            began()
        time.sleep(0.05)
    dist.destroy_process_group()


def communicate_wrongly(
    groups: dict[str, dist.ProcessGroup], pairs: dict[tuple[int, int], dist.ProcessGroup], gradient: torch.Tensor
) -> None:
    """Call what the other ranks do not."""
    late = RANK == WORLD - 1
    if SCENE == "two_groups":
        began()
        for name in ("a", "b") if RANK == 0 else ("b", "a"):
            dist.all_reduce(gradient, group=groups[name])
    elif SCENE == "chain":
        if RANK == 0:
            dist.all_reduce(gradient, group=pairs[0, 1])
        elif RANK == 1:
            dist.all_reduce(gradient, group=pairs[1, 2])
        else:
            began()
            time.sleep(1000)
    elif SCENE == "shapes":
        began()
        dist.all_reduce(torch.zeros(2048) if late else gradient)
    elif SCENE == "kinds":
        began()
        if late:
            dist.broadcast(gradient, src=0)
        else:
            dist.all_reduce(gradient)
    elif SCENE == "message":
        if late:
            began()
            threading.Event().wait()
        elif RANK == WORLD - 2:
            dist.recv(gradient, src=WORLD - 1)


if __name__ == "__main__":
    if RANK == 0 and not FIFO.exists():
        os.mkfifo(FIFO)
    train()
