"""Keeps torch's compiler out of the jobs of tests, whose PYTHONPATH names this folder.

The first optimizer of a process imports the compiler, only to have itself left out of what is compiled. That takes as
long as the import of torch, two seconds of a processor, and a job that compiles nothing is the same without it. One
that does compile finds here nothing to do it with, and fails: the variable JOB_COMPILES leaves it all its parts.

Two more parts of the compiler are a quarter of what `import torch` takes. What exports programs is loaded when one of
its names is asked for; what tells the shapes of results without the results is not there.

A process that ends does not look for cycles among all that it has imported either: with torch, half a second more.
Before that it lets gloo's threads come to rest. One of them may still hold a tensor of the last collective when the
interpreter is gone; torch 2.13 then aborts, in jobs without this file too.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
SHAPES = "torch._meta_registrations"
EXPORT = "torch.export"


class _NoCompiler:
    """Finds and loads a compiler that has only what optimizers and DDP call of it, and no shapes."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == EXPORT:
            from importlib.machinery import PathFinder

            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _Later(spec.loader)
            return spec
        if name not in (COMPILER, SHAPES):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == SHAPES:
            _make_generators()
            return
        groups = []

        def optimize_ddp_mode() -> str:
            # The compiler refers to the group of a wrapped model. Without that the group dies with the model, and
            # gloo's may then wait for a thread that waits for the interpreter.
            import torch.distributed as dist

            groups.append(dist.group.WORLD)
            return "ddp_optimizer"

        def nothing(*_: object) -> None:
            return None

        vars(module).update(
            disable=lambda function, *_, **__: function,
            graph_break=nothing,
            config=SimpleNamespace(error_on_nested_fx_trace=True),  # asked by checkpoints that recompute
            utils=SimpleNamespace(get_optimize_ddp_mode=optimize_ddp_mode),
            trace_rules=SimpleNamespace(
                LEGACY_MOD_INLINELIST=set(),
                get_legacy_mod_inlinelist=SimpleNamespace(cache_clear=nothing),
                clear_lru_cache=nothing,
            ),
        )


class _Later:
    """Loads a module when one of its names is asked for; the modules in it are found before."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def load(name: str) -> Any:
            if name.startswith("__"):  # asked for by imports
                raise AttributeError(name)
            del vars(module)["__getattr__"]
            self._loader.exec_module(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = load


def _make_generators() -> None:
    """Let random number generators be made: newer versions of torch allow it on their way to the shapes."""
    from torch import _C

    if hasattr(_C, "_set_generator_metaclass"):
        from torch._opaque_base import OpaqueBaseMeta

        _C._set_generator_metaclass(OpaqueBaseMeta)


def _gloo_rests() -> bool:
    """Whether each thread that runs gloo's collectives waits, for work or for the interpreter."""
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                name, state = file.read().rpartition(")")[::2]
        except OSError:  # it has ended
            continue
        if name.endswith("(pt_gloo_runloop") and state.split()[0] != "S":
            return False
    return True


def _end() -> None:
    looks_at_rest = 0
    for _ in range(5000):
        looks_at_rest = looks_at_rest + 1 if _gloo_rests() else 0
        if looks_at_rest == 2:
            break
        time.sleep(0.002)  # a thread that waits for the interpreter has it meanwhile
    gc.freeze()


if "JOB_COMPILES" not in os.environ:
    sys.meta_path.insert(0, _NoCompiler())
atexit.register(_end)  # the first that is registered is called last
