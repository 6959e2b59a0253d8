"""Reads a Darshan log in a separate process: its library may crash on a log that is cut, and writes to stderr.

The process is forked, because importing PyDarshan again takes a second for each log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Job:
    """Head of a log."""

    job: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Any]]
    names: Mapping[int, str]
    mounts: list[tuple[str, str]]
    command: str


@dataclass(frozen=True, slots=True)
class Segments:
    """Calls of one process on one file, by DXT: columns offset, length, start_time, end_time."""

    module: str
    record_id: int
    rank: int
    host: str
    reads: Mapping[str, npt.NDArray[Any]]
    writes: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Counters:
    """One record of a module of counters."""

    module: str
    record: Mapping[str, Any]


Item = Job | Segments | Counters


def read_apart(backend: Any, path: str, complaints: list[str]) -> Iterator[Item]:
    """Yield the content of a log: its head, then DXT, then counters; append the library's ``complaints``."""
    with tempfile.TemporaryFile() as stderr:
        receiver, sender = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child touches nothing of theirs
            child = os.fork()
        if child == 0:
            _child(backend, path, receiver, sender, stderr.fileno())
        os.close(sender)
        status = 0
        try:
            with open(receiver, "rb") as stream:
                yield from _receive(stream)
        finally:
            _, status = os.waitpid(child, 0)
            stderr.seek(0)
            complaints += [line.strip().rstrip(".") for line in stderr.read().decode(errors="replace").splitlines()]
        if status:
            complaints.append("PyDarshan crashed" if os.WIFSIGNALED(status) else "PyDarshan failed")


def _receive(stream: BinaryIO) -> Iterator[Item]:
    while True:
        try:
            item: Item = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):  # the end, or a child that died in the middle of an item
            return
        yield item


def _child(backend: Any, path: str, receiver: int, sender: int, stderr: int) -> None:
    """Send the items of a log, and end the process."""
    code = 1
    try:
        os.close(receiver)
        os.dup2(stderr, 2)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(sender, "wb") as stream:
            for item in _items(backend, path):
                pickle.dump(item, stream)
        code = 0
    except Exception as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _items(backend: Any, path: str) -> Iterator[Item]:
    with _handle(backend, path) as log:
        if log is None:
            return
        modules = dict(backend.log_get_modules(log))
        yield Job(
            backend.log_get_job(log),
            modules,
            dict(backend.log_get_name_records(log)),
            list(backend.log_get_mounts(log)),
            backend.log_get_exe(log),
        )
    for module in ("DXT_POSIX", "DXT_MPIIO"):
        if module in modules:
            yield from _segments(backend, path, module)
    for module in ("POSIX", "STDIO") if "POSIX" in modules else ("STDIO", "MPI-IO"):
        if module in modules:
            with _handle(backend, path) as log:
                while (record := backend.log_get_record(log, module, "dict")) is not None:
                    yield Counters(module, record)


@contextlib.contextmanager
def _handle(backend: Any, path: str) -> Iterator[Any]:
    """Open a log for one module: a handle that goes back to an earlier module fails."""
    log = backend.log_open(path)
    if not bool(log["handle"]):
        yield None
        return
    yield log
    backend.log_close(log)


def _segments(backend: Any, path: str, module: str) -> Iterator[Segments]:
    with _handle(backend, path) as log:
        while (record := backend.log_get_dxt_record(log, module)) is not None:
            yield Segments(
                module,
                int(record["id"]),
                int(record["rank"]),
                record["hostname"],
                _columns(record["read_segments"]),
                _columns(record["write_segments"]),
            )


def _columns(rows: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}
