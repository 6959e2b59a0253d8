"""Keeps torch's compiler out of the jobs of tests, whose PYTHONPATH names this folder.

The first optimizer of a process imports the compiler, only to have itself left out of what is compiled. That takes as
long as the import of torch, two seconds of a processor, and a job that compiles nothing is the same without it. One
that does compile finds here nothing to do it with, and fails: the variable JOB_COMPILES leaves it all its parts.

What else the compiler needs is two fifths of `import torch`, and most jobs never ask for it. It is loaded when one of
its names or modules is asked for, in torch's order, since these parts import each other. Quantized layers and
distributions are loaded in the same way; what works out shapes without results is not there.

A process that ends does not look for cycles among all that it has imported either: with torch, half a second more.
Before that it lets gloo's threads come to rest. One of them may still hold a tensor of the last collective when the
interpreter is gone; torch 2.13 then aborts, in jobs without this file too.
"""

from __future__ import annotations

import atexit
import copy
import gc
import os
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
EXPORT = "torch.export"
SHAPES = "torch._meta_registrations"
SHAPES_OF_COLLECTIVES = "torch.distributed._meta_registrations"
#: Relies on parts that `import torch` has loaded, which import it.
CHECKPOINT = "torch.utils.checkpoint"
#: The first version whose order of imports is known here; of older ones little is left to later.
KNOWN = (2, 13)
#: What is loaded when it is asked for -> names that `import torch` asks for, which get a stand-in.
LATER: dict[str, tuple[str, ...]] = {
    "torch._higher_order_ops": ("cond", "while_loop"),
    "torch._higher_order_ops.invoke_subgraph": ("NestedCompileRegionOptions",),
    "torch._native": (),
    "torch._subclasses": (),
    "torch.distributions": (),
    "torch.export": (),
    "torch.func": ("vmap",),
    "torch.fx": (),
    "torch.fx.experimental": (),
    "torch.fx.experimental.sym_node": ("DynamicInt",),  # asked for by the first call of C++, which waits for it
    "torch.fx.operator_schemas": ("_SCHEMA_TO_SIGNATURE_CACHE",),
    "torch.fx.traceback": (),
    "torch.masked": (),
    "torch.nested": (),
    "torch.nested._internal": (),
    "torch.nested._internal.nested_tensor": ("NestedTensor",),  # asked for by each backward
    "torch.nn.intrinsic": (),
    "torch.nn.qat": (),
    "torch.nn.quantizable": (),
    "torch.nn.quantized": (),
    "torch.quantization": (),
}
#: Those that import each other, in the order in which `import torch` does.
IN_ORDER = ("torch.nested", "torch.func", "torch._higher_order_ops", "torch.fx.experimental.sym_node")


class _NoCompiler:
    """Finds and loads a compiler that has only what optimizers and DDP call of it, and no shapes."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        from importlib.machinery import ModuleSpec, PathFinder

        if name in LATER and (name == EXPORT or _is_known()):
            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _Later(spec.loader)
            return spec
        if name in (COMPILER, SHAPES) or (name == SHAPES_OF_COLLECTIVES and _is_known()):
            return ModuleSpec(name, self, is_package=True)
        if _load("torch.fx" if name == CHECKPOINT else name.rpartition(".")[0]) and name in sys.modules:
            spec = copy.copy(sys.modules[name].__spec__)
            assert spec is not None
            spec.loader = _Loaded()
            sys.modules[name].__spec__ = spec  # which is looked at, rather than what is returned
            return spec
        return None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != COMPILER:
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
    """Loads a module when one of its names or modules is asked for."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        stand_ins = {name: _stand_in(module, name) for name in LATER[module.__name__]}

        def ask(name: str) -> Any:
            if name.startswith("__"):  # asked for by imports
                raise AttributeError(name)
            if name in stand_ins:
                return stand_ins[name]
            _load(module.__name__)
            return getattr(module, name)

        vars(module).update(__getattr__=ask, _load_now=lambda: self._loader.exec_module(module))


class _Loaded:
    """Gives back a module that its package has loaded."""

    def create_module(self, spec: Any) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        return None


def _is_known() -> bool:
    version = getattr(sys.modules.get("torch"), "__version__", "0")
    return tuple(int(part) for part in version.split(".")[:2]) >= KNOWN


def _stand_in(module: ModuleType, name: str) -> Any:
    """A class, which an annotation may name too, that calls the function; of a cache an empty one."""
    if name.endswith("_CACHE"):
        return {}

    def call(_: Any, *values: Any, **named: Any) -> Any:
        _load(module.__name__)
        return getattr(module, name)(*values, **named)

    return type(name, (), {"__new__": call})


def _load(name: str) -> bool:
    """Load what was left to later, and before it what torch would have loaded; return whether there was anything."""
    if name not in LATER or name not in sys.modules or "_load_now" not in vars(sys.modules[name]):
        return False
    module = vars(sys.modules[name])
    global _in_order
    if not _in_order and name.startswith((*IN_ORDER[:3], "torch.fx", "torch._subclasses")):
        _in_order = True
        for part in IN_ORDER:
            _load(part)
        _in_order = False
    _load(name.rpartition(".")[0])
    if "_load_now" in module:
        del module["__getattr__"]
        module.pop("_load_now")()
    return True


_in_order = False


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
