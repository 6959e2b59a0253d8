"""Leave CUPTI to torch.profiler: a process has room for one profiler, and the user's own comes first.

Installed by ``bootstrap`` when ``torch.autograd.profiler`` has been imported. The native hooks see Kineto subscribe as
well, but not by the newer calls of CUPTI, which a preloaded library cannot offer without misleading programs that look
for them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from stashtrace.probes import native, patching
from stashtrace.probes.recorder import failed

COLLECTOR = "cupti"


def install(profiler: ModuleType) -> None:
    """Patch the method by which all profilers of torch start Kineto."""
    patching.replace(COLLECTOR, profiler.profile, "_prepare_trace", _prepare)


def _prepare(original: Any) -> Any:
    def _prepare_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if any(getattr(activity, "name", "") == "CUDA" for activity in self.kineto_activities):
                native.kernels_step_aside("torch.profiler")
        except Exception as error:
            failed(COLLECTOR, "step_aside", error)
        return original(self, *args, **kwargs)

    return _prepare_trace
