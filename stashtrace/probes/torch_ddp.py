"""DistributedDataParallel: how large its buckets are, which gradients they hold, and another size if one is asked for.

Installed by ``bootstrap`` when ``torch.nn.parallel.distributed`` has been imported. ``stashtrace whatif --apply`` sets
``STASHTRACE_BUCKET_MB``: that size takes the place of torch's default; what the script asks for itself stays.
What a process says of itself is read by ``analysis/ddp_facts``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import math
import os
from types import ModuleType
from typing import Any

from stashtrace.probes import patching, recorder
from stashtrace.probes.recorder import failed

VARIABLE = "STASHTRACE_BUCKET_MB"
#: Facts of a process, each with the number of the wrapper: "MIB SOURCE", and the bytes of the gradients in the reverse
#: order of the parameters. The same in ``analysis/ddp_facts``.
BUCKET, GRADIENTS = "ddp_bucket", "ddp_gradients"
COLLECTOR = "core"
_OPTIONS = ("bucket_cap_mb", "bucket_cap_mb_list")
#: More gradients than this would fill the strings of a process.
_MOST_GRADIENTS = 4096
#: Wrappers that are told of; a job that makes one for each step would fill its strings.
_MOST_WRAPPERS = 8


def install(distributed: ModuleType) -> None:
    """Patch the constructor."""
    text = os.environ.get(VARIABLE, "")
    wanted = wanted_mib(text)
    if text and wanted is None:
        recorder.unavailable(COLLECTOR, "bucket_not_applied", f"{VARIABLE}={text!r} is no size in MiB")
    patching.replace(COLLECTOR, distributed.DistributedDataParallel, "__init__", _constructor(wanted))


def wanted_mib(text: str) -> int | float | None:
    """Return the size that the variable asks for, None if it is none; whole numbers as int, as torch declares them."""
    try:
        size = float(text)
    except ValueError:
        return None
    if not (size > 0 and math.isfinite(size)):
        return None
    return int(size) if size == int(size) else size


def _constructor(wanted: int | float | None) -> Any:
    told = 0

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal told
            try:
                bound = signature.bind_partial(self, *args, **kwargs)
            except TypeError:
                original(self, *args, **kwargs)  # which raises it as it would without us
                return
            own = any(bound.arguments.get(name) is not None for name in _OPTIONS)
            if wanted is not None and not own:
                bound.arguments["bucket_cap_mb"] = wanted
            original(*bound.args, **bound.kwargs)
            if told < _MOST_WRAPPERS:
                _tell(self, told, "script" if own else "default" if wanted is None else "applied")
            told += 1

        return __init__

    return make


def _tell(wrapper: Any, number: int, source: str) -> None:
    try:
        recorder.record_fact(f"{BUCKET} {number}", f"{wrapper.bucket_bytes_cap / 2**20:g} {source}")
        gradients = [p.numel() * p.element_size() for p in wrapper.module.parameters() if p.requires_grad]
        if len(gradients) <= _MOST_GRADIENTS:
            recorder.record_fact(f"{GRADIENTS} {number}", " ".join(map(str, reversed(gradients))))
    except Exception as error:
        failed(COLLECTOR, "ddp_facts", error)
