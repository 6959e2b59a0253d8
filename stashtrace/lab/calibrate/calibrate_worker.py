"""One process that measures, started by ``start_workers``.

``python -m stashtrace.lab.calibrate.calibrate_worker TASK.json``

The task says what; the answer is written beside it. torch and cupy are imported here and nowhere else.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stashtrace.errors import MissingDataError
from stashtrace.lab.calibrate.sweep import Engine, measure
from stashtrace.lab.machine_use import Used
from stashtrace.whole_files import write_whole


def main(argv: list[str]) -> int:
    """Do the task of a file, and write the answer beside it."""
    task = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    answer = probe() if task["what"] == "probe" else run(task)
    write_whole(Path(task["answer"]), json.dumps(answer))
    return 0


def probe() -> dict[str, Any]:
    """Find which libraries are installed and which devices there are."""
    torch = optional("torch", "torch.distributed")
    if torch is not None:
        from stashtrace.lab.calibrate.torch_engine import torch_facts

        facts = torch_facts(torch)
        # A build of torch without CUDA beside a CuPy that has it.
        if facts["devices"] or optional("cupy") is None:
            return {"library": "torch", **facts}
    cupy = optional("cupy")
    if cupy is None:
        return {"library": "torch", **facts} if torch is not None else {"library": "", "backends": [], "devices": []}
    from stashtrace.lab.calibrate.cupy_engine import cupy_facts

    try:
        devices = cupy_facts(cupy, optional("cupy.cuda.nccl"))
    except Exception as error:  # CUDARuntimeError of a machine without a driver
        devices = {"backends": [], "devices": [], "complaint": str(error)}
    beside = {} if torch is None else {"torch": torch.__version__, "host_backends": facts["backends"]}
    return {**devices, "library": "cupy", **beside}


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Measure what the task says; what the engine itself does not trust is left out.

    Returns the fields of :class:`stashtrace.lab.calibrate.sweep.Measured`, and as ``used`` those of :class:`Used`
    meanwhile; None if not known.
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
        from stashtrace.lab.calibrate.torch_engine import DiskReads

        return DiskReads(task["disk"], max(task["sizes_bytes"]))
    place = task["rank"], task["ranks"], task["rendezvous"]
    if task["library"] == "cupy" and task["backend"] != "gloo":
        from stashtrace.lab.calibrate.cupy_engine import CupyCollectives, CupyCopies

        cupy = importlib.import_module("cupy")
        if task["backend"] == "cuda":
            return CupyCopies(cupy)
        return CupyCollectives(cupy, importlib.import_module("cupy.cuda.nccl"), *place)
    from stashtrace.lab.calibrate.torch_engine import TorchCollectives, TorchCopies

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
