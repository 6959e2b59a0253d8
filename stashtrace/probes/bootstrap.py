"""Install the probes when torch has been imported, without ever importing it.

The injected sitecustomize calls :func:`install` in every Python of a traced job. It puts one finder at the front of
``sys.meta_path``. When a watched module has been imported, the probes of that module are loaded and called; if one
raises, a ``loss`` row says so. Forked children inherit the patches, spawned ones run this again.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

# Every Python of the job runs this file, and importing typing would double its cost.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: By the name of a watched module: collector and "module:function", which is called with the module.
PROBES: dict[str, tuple[tuple[str, str], ...]] = {
    "torch": (
        ("torch_step", "stashtrace.probes.torch.step:install"),
        ("torch_step", "stashtrace.probes.torch.checkpoint:install"),
    ),
    "torch.amp.grad_scaler": (("torch_step", "stashtrace.probes.torch.step:install_grad_scaler"),),
    "torch.utils.data.dataloader": (("torch_dataloader", "stashtrace.probes.torch.dataloader:install"),),
    "torchdata.stateful_dataloader.worker": (
        ("torch_dataloader", "stashtrace.probes.torch.dataloader_worker:install"),
    ),
    "torchdata.stateful_dataloader.stateful_dataloader": (
        ("torch_dataloader", "stashtrace.probes.torch.dataloader:install_torchdata"),
    ),
    "torch.distributed.distributed_c10d": (("torch_distributed", "stashtrace.probes.torch.distributed:install"),),
    "torch.distributed.elastic.multiprocessing.errors": (
        ("torch_distributed", "stashtrace.probes.child_ends:install_elastic"),
    ),
    "torch.nn.parallel.distributed": (("core", "stashtrace.probes.torch.ddp:install"),),
    "torch.multiprocessing.spawn": (("torch_distributed", "stashtrace.probes.child_ends:install_spawn"),),
    "mpi4py.MPI": (("torch_distributed", "stashtrace.probes.surroundings:look_for_mpi"),),
    "torch._dynamo.trace_rules": (("torch_step", "stashtrace.probes.torch.step:hide_from_dynamo"),),
    "torch._dynamo.convert_frame": (("torch_step", "stashtrace.probes.torch.host_calls.compiling:install"),),
    "torch.autograd.profiler": (("cupti", "stashtrace.probes.torch.step:install_profiler"),),
    "torch.distributed.checkpoint": (("torch_step", "stashtrace.probes.torch.checkpoint:install_distributed"),),
    "wandb": (("core", "stashtrace.probes.trackers:install_wandb"),),
    "mlflow.tracking.fluent": (("core", "stashtrace.probes.trackers:install_mlflow"),),
    "mlflow.tracking.client": (("core", "stashtrace.probes.trackers:install_mlflow_client"),),
    "torch.utils.tensorboard.writer": (("core", "stashtrace.probes.trackers:install_tensorboard"),),
    "tensorboardX.writer": (("core", "stashtrace.probes.trackers:install_tensorboard"),),
    "trackio": (("core", "stashtrace.probes.trackers:install_trackio"),),
}
if os.environ.get("STASHTRACE_SYNTHETIC", "0") != "0":
    # Data is replayed whatever is recorded. This probe comes first, so that torch_dataloader wraps its wrappers.
    for _name, _replay in (
        ("torch.utils.data.dataloader", "install"),
        ("torchdata.stateful_dataloader.stateful_dataloader", "install_torchdata"),
    ):
        PROBES[_name] = (("core", f"stashtrace.probes.torch.replay:{_replay}"), *PROBES[_name])

for _variable, _name, _probe in (
    ("STASHTRACE_LOADER", "torch.utils.data.dataloader", ("torch_dataloader", "torch.loader_settings")),
    ("STASHTRACE_LOSSES", "torch", ("torch_step", "torch.losses")),
):
    if _variable in os.environ:
        PROBES[_name] = ((_probe[0], f"stashtrace.probes.{_probe[1]}:install"), *PROBES[_name])

#: The package that these probes are part of, which a job may import for its annotations.
_PACKAGE = "stashtrace"

#: How long the import of a watched module took.
import_ns: dict[str, int] = {}

_process: _Process | None = None


class _Process:
    """What has been prepared in this process."""

    def __init__(self) -> None:
        self.prepared = False

    def prepare(self) -> bool:
        """Load the recorder on first use; return False if this process is not traced."""
        if not self.prepared:
            self.prepared = True
            _prepare_process()
        from stashtrace.probes import native

        return native.active()


class ImportHook:
    """Meta path finder that calls back after the import of a watched module.

    It finds nothing itself, but for this package in a job whose environment has none. ``names``: modules to watch.
    ``callback``: called with the name and the module, once, when the module has been executed.
    """

    def __init__(self, names: Sequence[str], callback: Callable[[str, ModuleType], None]) -> None:
        self._waiting = set(names)
        self._callback = callback

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Ask the other finders, and have their loader call back."""
        if name == _PACKAGE:
            found = self._others(name, path, target)
            # A folder of this name, with no module in it, is no package.
            return found if found is not None and found.origin is not None else _own_package()
        if name not in self._waiting:
            return None
        spec = self._others(name, path, target)
        if spec is not None and spec.loader is not None:
            self._follow(name, spec.loader)
        return spec

    def _others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            begin_ns = time.monotonic_ns()
            execute(module)
            import_ns[name] = time.monotonic_ns() - begin_ns
            if name in self._waiting:
                self._waiting.discard(name)
                self._callback(name, module)

        try:
            # Set on the loader itself: a wrapper would change its type and its other methods.
            loader.exec_module = exec_module
        except AttributeError as error:
            _report("torch_step", f"{name}_not_followed", str(error))


def _own_package() -> ModuleSpec | None:
    from importlib.machinery import PathFinder

    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return PathFinder.find_spec(_PACKAGE, [os.path.dirname(package)])


def install() -> None:
    """Watch the imports of this process; a second call does nothing."""
    global _process
    if _process is not None:
        return
    _process = _Process()
    if "STASHTRACE_CPU_SHARES" in os.environ:
        from stashtrace.probes import surroundings

        surroundings.pin_to_share()
    hook = ImportHook(tuple(PROBES), _imported)
    for name in tuple(PROBES):
        if name in sys.modules:  # by the user's sitecustomize
            _imported(name, sys.modules[name])
    sys.meta_path.insert(0, hook)


def prepare() -> None:
    """Start the recorder in this process, as the import of a watched module does."""
    if _process is not None:
        _process.prepare()


def _imported(name: str, module: ModuleType) -> None:
    """Run the probes of one module; their exceptions become loss rows."""
    for collector, target in PROBES[name]:
        try:
            if _process is None or not _process.prepare() or not _is_on(collector):
                continue
            module_name, _, function = target.partition(":")
            getattr(importlib.import_module(module_name), function)(module)
        except Exception as error:
            probe = target.partition(":")[0].removeprefix("stashtrace.probes.").replace(".", "_")
            _report(collector, f"{probe}_not_installed", repr(error))


def _is_on(collector: str) -> bool:
    from stashtrace.probes import native

    return collector in native.config()["collectors"]


def _prepare_process() -> None:
    from stashtrace.probes import process, stacks, surroundings

    process.begin()
    stacks.begin()
    surroundings.watch_for_mpi()
    if folder := surroundings.gpu_jobs_folder():
        surroundings.record_gpu_jobs(folder)


def _report(collector: str, reason: str, detail: str) -> None:
    try:
        from stashtrace.probes import recorder

        recorder.unavailable(collector, reason, detail)
    except Exception as error:
        rank = os.environ.get("RANK", "-")
        sys.stderr.write(f"stashtrace[{rank} {os.getpid()}] error: {reason}: {detail} ({error!r})\n")
