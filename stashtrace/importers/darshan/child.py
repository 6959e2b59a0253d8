"""Reads a Darshan log in a process of its own: its library may crash on a log that is cut, and talks on stderr.

A forked child, because importing PyDarshan anew takes a second for each log.
"""

# SPDX-License-Identifier: Apache-2.0
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
    """What the head of a log says."""

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


def read_apart(backend: Any, path: str, heard: list[str]) -> Iterator[Item]:
    """What a log holds: its head, then DXT, then counters. What the library complained about goes to ``heard``."""
    with tempfile.TemporaryFile() as said:
        receiver, sender = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child touches nothing of theirs
            child = os.fork()
        if child == 0:
            _child(backend, path, receiver, sender, said.fileno())
        os.close(sender)
        status = 0
        try:
            with open(receiver, "rb") as stream:
                yield from _received(stream)
        finally:
            _, status = os.waitpid(child, 0)
            said.seek(0)
            heard += [line.strip().rstrip(".") for line in said.read().decode(errors="replace").splitlines()]
        if status:
            heard.append("PyDarshan crashed" if os.WIFSIGNALED(status) else "PyDarshan failed")


def _received(stream: BinaryIO) -> Iterator[Item]:
    while True:
        try:
            item: Item = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):  # the end, or a child that died in the middle of an item
            return
        yield item


def _child(backend: Any, path: str, receiver: int, sender: int, said: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.close(receiver)
        os.dup2(said, 2)
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
    """A handle for one module: one that goes back to an earlier module fails."""
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
