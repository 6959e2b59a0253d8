"""torchdata's StatefulDataLoader, which has iterators and a worker loop of its own, in the manner of torch's.

Its iterators derive from torch's and call the same ``__next__``; what it writes anew is wrapped with the wrappers of
``torch_dataloader``. Its worker loop is wrapped where it is defined, before the loader's module takes it from there.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import ModuleType

from stashtrace.probes import patching, torch_dataloader


def install(module: ModuleType) -> None:
    """Patch ``torchdata.stateful_dataloader.stateful_dataloader``."""
    collector = torch_dataloader.COLLECTOR
    multi = module._StatefulMultiProcessingDataLoaderIter
    patching.replace(collector, module.StatefulDataLoader, "__iter__", torch_dataloader.timed_iter)
    patching.replace(collector, multi, "_reset", torch_dataloader.counted_reset)
    patching.replace(collector, multi, "_process_data", torch_dataloader.told_worker)
    patching.replace(collector, multi, "_shutdown_workers", torch_dataloader.timed_shutdown, needed=False)
