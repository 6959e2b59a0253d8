"""One process that measures, started by ``measure``: every operation at every size, until the time is up.

``python -m stashtrace.lab.calibrate.calibrate_worker TASK.json``

The task says what; the answer is written next to it. torch and cupy are imported here and nowhere else. An *engine*
does the operations. Rounds interleave all sizes, in another order each time, so that a machine that slows down for a
while does so for all of them.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stashtrace.errors import MissingDataError, one_line
from stashtrace.files.whole_files import write_whole
from stashtrace.lab.machine import Used

#: Small messages are cheap and scatter most, so they come more often in a round.
_SMALL_BYTES = 65536
_SMALL_REPEATS = 4
_WARM_ROUNDS = 2


class Engine(Protocol):
    """Interface of what does the operations. All ranks of an engine make the same calls in the same order."""

    #: ``host``: stamps of a clock that all ranks share. ``device``: the begin is 0 and the end a duration.
    timing: str

    def prepare(self, op: str, size_bytes: int) -> None:
        """Allocate the buffers of one case; raise if that is not possible here."""

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Do the operation once; return begin and end in ns."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def agree(self, value: bool) -> bool:
        """Broadcast rank 0's value to all ranks."""

    def check(self) -> None:
        """Raise MissingDataError if what was timed is not what it should be."""

    def close(self) -> None:
        """Release what the engine holds."""


@dataclass(slots=True)
class Measured:
    """Stamps of one rank."""

    #: Of the engine.
    timing: str
    #: Operation -> size -> list of (begin_ns, end_ns) in the order of the rounds.
    stamps: dict[str, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)
    #: Operation that could not be done -> why.
    left_out: dict[str, str] = field(default_factory=dict)
    #: Rounds without the warm-up.
    rounds_count: int = 0


def measure(
    engine: Engine,
    ops: Sequence[str],
    sizes_bytes: Sequence[int],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Warm up, then measure rounds until ``seconds`` are over; at least one round.

    The warm-up is included. Rank 0's clock decides.
    """
    deadline = clock() + seconds
    measured = Measured(engine.timing)
    usable = []
    for op in ops:
        try:
            for size in sizes_bytes:
                engine.prepare(op, size)
            engine.timed(op, sizes_bytes[0])
        except Exception as error:  # of torch, cupy, the driver or the kernel: whatever they do not support
            measured.left_out[op] = one_line(error)[:200]
            continue
        usable.append(op)
        measured.stamps[op] = {size: [] for size in sizes_bytes}
    cases = [(op, size) for op in usable for size in sizes_bytes]
    order = random.Random(len(cases))  # the same on all ranks
    warm_until = clock() + seconds / 4
    for number in range(_WARM_ROUNDS):
        if not cases or not engine.agree(number == 0 or clock() < warm_until):
            break
        for op, size in cases:
            engine.barrier()
            engine.timed(op, size)
    # Not four times in a row: the first after another message is slower, and every size must be as often the first.
    turns = [case for case in cases for _ in range(_SMALL_REPEATS if case[1] <= _SMALL_BYTES else 1)]
    while turns:
        order.shuffle(turns)
        for op, size in turns:
            engine.barrier()
            measured.stamps[op][size].append(engine.timed(op, size))
        measured.rounds_count += 1
        if not engine.agree(clock() < deadline):
            break
    return measured


def sizes_between(low_bytes: int, high_bytes: int, *, unit_bytes: int = 1) -> list[int]:
    """Sizes from ``low`` to ``high`` in steps of a factor of two, each a multiple of ``unit``.

    Examples
    --------
    >>> sizes_between(1000, 9000)
    [1000, 2000, 4000, 8000, 9000]
    >>> sizes_between(64, 512, unit_bytes=24)
    [48, 120, 240, 504]
    """
    sizes, size = [], low_bytes
    while size < high_bytes:
        sizes.append(size)
        size *= 2
    sizes.append(high_bytes)
    return sorted({max(s // unit_bytes, 1) * unit_bytes for s in sizes})


def main(argv: list[str]) -> int:
    """Do the task of a file, and write the answer next to it."""
    task = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    answer = probe() if task["what"] == "probe" else run(task)
    write_whole(Path(task["answer"]), json.dumps(answer))
    return 0


def probe() -> dict[str, Any]:
    """Find which libraries are installed and which devices there are."""
    torch = optional("torch", "torch.distributed")
    if torch is not None:
        from stashtrace.lab.calibrate.engines import torch_facts

        facts = torch_facts(torch)
        # A build of torch without CUDA, and a CuPy that has it.
        if facts["devices"] or optional("cupy") is None:
            return {"library": "torch", **facts}
    cupy = optional("cupy")
    if cupy is None:
        return {"library": "torch", **facts} if torch is not None else {"library": "", "backends": [], "devices": []}
    from stashtrace.lab.calibrate.engines import cupy_facts

    try:
        devices = cupy_facts(cupy, optional("cupy.cuda.nccl"))
    except Exception as error:  # CUDARuntimeError of a machine without a driver
        devices = {"backends": [], "devices": [], "complaint": str(error)}
    host = {} if torch is None else {"torch": torch.__version__, "host_backends": facts["backends"]}
    return {**devices, "library": "cupy", **host}


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Measure what the task says; what the engine itself does not trust is left out.

    Returns the fields of :class:`Measured`, and as ``used`` those of :class:`Used` meanwhile; None if not known.
    """
    engine = _engine(task)
    try:
        before = Used.now()
        measured = measure(engine, task["ops"], task["sizes_bytes"], task["seconds"])
        after = Used.now()
        engine.check()
    except MissingDataError as error:
        measured.left_out |= dict.fromkeys(measured.stamps, str(error))
        measured.stamps.clear()
    finally:
        engine.close()
    return {**asdict(measured), "used": after.since(before) if before and after else None}


def _engine(task: Mapping[str, Any]) -> Engine:
    if task["backend"] == "posix":
        from stashtrace.lab.calibrate.engines import DiskReads

        return DiskReads(task["disk"], max(task["sizes_bytes"]))
    place = task["rank"], task["ranks"], task["rendezvous"]
    if task["library"] == "cupy" and task["backend"] != "gloo":
        from stashtrace.lab.calibrate.engines import CupyCollectives, CupyCopies

        cupy = importlib.import_module("cupy")
        if task["backend"] == "cuda":
            return CupyCopies(cupy)
        return CupyCollectives(cupy, importlib.import_module("cupy.cuda.nccl"), *place)
    from stashtrace.lab.calibrate.engines import TorchCollectives, TorchCopies

    torch = importlib.import_module("torch")
    importlib.import_module("torch.distributed")
    return TorchCopies(torch) if task["backend"] == "cuda" else TorchCollectives(torch, task["backend"], *place)


def optional(*names: str) -> Any:
    """Import modules; return the first, or None if one of them cannot be imported."""
    try:
        modules = [importlib.import_module(name) for name in names]
    except (ImportError, OSError):  # not installed, or a library of it is missing
        return None
    return modules[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
