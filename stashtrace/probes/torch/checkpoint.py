"""Checkpoints: ``torch.save``, ``torch.load``, ``torch.distributed.checkpoint.save``, ``async_save``, ``load``.

Part of the ``torch_step`` collector. A call inside another one (``dcp.save`` calls ``torch.save`` for its metadata) is
not recorded again, nor is the pickling of a tensor, which torch does with ``torch.save``. Work for ``async_save`` on
other threads of the process is marked as background.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType, ModuleType
from typing import Any

from stashtrace.probes import patching, recorder
from stashtrace.probes.process import thread_state, window
from stashtrace.probes.recorder import CLOCKS, failed, phase_ends, probe_begins

COLLECTOR = "torch_step"
_SAVE = recorder.code("Phase", "checkpoint")
_LOAD = recorder.code("Phase", "checkpoint_load")
_FAILED = recorder.code("PhaseFlag", "failed")
_BACKGROUND = recorder.code("PhaseFlag", "background")


def install(torch: ModuleType) -> None:
    """Patch ``torch.save`` and ``torch.load`` under both of their names."""
    for name, phase in (("save", _SAVE), ("load", _LOAD)):
        if patching.replace(COLLECTOR, torch.serialization, name, _checkpoint(f"torch.{name}", phase)):
            setattr(torch, name, getattr(torch.serialization, name))


def install_distributed(checkpoint: ModuleType) -> None:
    """Patch ``torch.distributed.checkpoint``, in its own modules too, where ``async_save`` looks ``save`` up."""
    from importlib import import_module

    saver = import_module("torch.distributed.checkpoint.state_dict_saver")
    loader = import_module("torch.distributed.checkpoint.state_dict_loader")
    for module, name, phase in ((saver, "save", _SAVE), (saver, "async_save", _SAVE), (loader, "load", _LOAD)):
        if patching.replace(COLLECTOR, module, name, _checkpoint(f"dcp.{name}", phase)):
            setattr(checkpoint, name, getattr(module, name))


def _pickles(caller: FrameType) -> bool:
    """Return whether a storage is pickled or unpickled (torch/storage.py: __reduce__, _load_from_bytes)."""
    return caller.f_globals.get("__name__") == "torch.storage"


def _checkpoint(label: str, phase: int) -> Any:
    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if thread_state.in_checkpoint or not window.open or _pickles(sys._getframe(1)):
                return original(*args, **kwargs)
            thread_state.in_checkpoint = True
            begin = probe_begins(CLOCKS)
            flags = _FAILED
            try:
                result = original(*args, **kwargs)
                flags = 0
                return result
            finally:
                thread_state.in_checkpoint = False
                try:
                    if threading.current_thread() is not threading.main_thread():
                        flags |= _BACKGROUND
                    phase_ends(begin, label, phase, flags)
                except Exception as error:
                    failed(COLLECTOR, "checkpoint", error)

        return call

    return make
