"""torchdata's StatefulDataLoader, which has its own iterators and worker loop, written after torch's.

Its iterators derive from torch's and call the same ``__next__``; the methods that it overrides get the wrappers of
``torch.dataloader``. Its worker loop is wrapped where it is defined, before the module of the loader imports it.
"""

from __future__ import annotations

from types import ModuleType

from stashtrace.probes import patching
from stashtrace.probes.torch import dataloader


def install(module: ModuleType) -> None:
    """Patch ``torchdata.stateful_dataloader.stateful_dataloader``."""
    collector = dataloader.COLLECTOR
    multi = module._StatefulMultiProcessingDataLoaderIter
    patching.replace(collector, module.StatefulDataLoader, "__iter__", dataloader.timed_iter)
    patching.replace(collector, multi, "_reset", dataloader.counted_reset)
    patching.replace(collector, multi, "_process_data", dataloader.wrap_process_data)
    patching.replace(collector, multi, "_shutdown_workers", dataloader.timed_shutdown, needed=False)
