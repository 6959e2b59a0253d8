"""Other settings of DataLoaders without a change of the script: workers, prefetched batches, pinning, kept workers.

``bootstrap`` imports this file with ``STASHTRACE_LOADER`` alone, which ``stashtrace tune`` sets: `num_workers=4,
prefetch_factor=4`, or nothing to record what the script gives. They replace what the script gives, in each DataLoader
that is made in a process that may start workers. ``lab/tune/run_job.py`` reads the facts.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import sys
from types import FrameType, ModuleType
from typing import Any

from stashtrace.probes import patching, recorder
from stashtrace.probes.recorder import failed

VARIABLE = "STASHTRACE_LOADER"
#: Key of the fact of a DataLoader, followed by its number; the same in ``lab/tune/run_job.py``.
FACT = "loader_settings"
COLLECTOR = "torch_dataloader"
_NUMBERS, _SWITCHES = ("num_workers", "prefetch_factor"), ("pin_memory", "persistent_workers")
#: torch refuses them without workers.
_OF_WORKERS = ("prefetch_factor", "persistent_workers")
#: Loaders that are recorded; a job that makes one for each step would fill its string table.
_MOST_LOADERS = 16


def install(dataloader: ModuleType) -> None:
    """Patch the constructor."""
    try:
        wanted = wanted_settings(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        recorder.unavailable(COLLECTOR, "loader_not_changed", f"{VARIABLE}: {error}")
        return
    patching.replace(COLLECTOR, dataloader.DataLoader, "__init__", _constructor(wanted, dataloader.__file__ or ""))


def wanted_settings(text: str) -> dict[str, int | bool]:
    """Return the settings that a text such as ``num_workers=4,pin_memory=1`` names.

    Raises ValueError if it is not of that form.
    """
    wanted: dict[str, int | bool] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in (*_NUMBERS, *_SWITCHES) or not value.isdecimal():
            raise ValueError(f"{part!r} is no setting of a DataLoader")
        wanted[name] = bool(int(value)) if name in _SWITCHES else int(value)
    return wanted


def _constructor(wanted: dict[str, int | bool], torch_file: str) -> Any:
    recorded_count = 0

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal recorded_count
            # A worker cannot start workers: loaders inside a data set stay as they are.
            if multiprocessing.current_process().daemon:
                original(self, *args, **kwargs)
                return
            bound = patching.bind(signature, self, *args, **kwargs)
            if bound is None:
                original(self, *args, **kwargs)  # which raises what it would without us
                return
            given = {name: bound.arguments.get(name) for name in (*_NUMBERS, *_SWITCHES)}
            applied = _fitting(wanted, given)
            bound.arguments.update(applied)
            original(*bound.args, **bound.kwargs)
            if recorded_count < _MOST_LOADERS:
                _record(self, recorded_count, given, applied, _place(sys._getframe(1), torch_file))
            recorded_count += 1

        return __init__

    return make


def _fitting(wanted: dict[str, int | bool], given: dict[str, Any]) -> dict[str, int | bool]:
    """Return the settings that go together with those of the script."""
    workers = wanted.get("num_workers", given["num_workers"] or 0)
    return {name: value for name, value in wanted.items() if workers or name not in _OF_WORKERS}


def _record(
    loader: Any, number: int, given: dict[str, Any], applied: dict[str, int | bool], place: tuple[str, int]
) -> None:
    try:
        now = {name: getattr(loader, name, None) for name in given}
        text = json.dumps({"file": place[0], "line": place[1], "given": given, "applied": applied, "now": now})
        recorder.record_fact(f"{FACT} {number}", text)
    except Exception as error:
        failed(COLLECTOR, "loader_settings", error)


def _place(frame: FrameType | None, torch_file: str) -> tuple[str, int]:
    """Return file and line of the call outside of torch's own file, whose name our frames have too."""
    while frame is not None and frame.f_code.co_filename == torch_file:
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
