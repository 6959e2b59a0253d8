"""DistributedDataParallel: record the size of its buckets and its gradients; set another size if one is asked for.

Installed by ``bootstrap`` when ``torch.nn.parallel.distributed`` has been imported. ``stashtrace tune`` sets
``STASHTRACE_BUCKET_MB``, which replaces torch's default; a size that the script gives stays.
``replay/communication/messages.py`` reads the facts.
"""

from __future__ import annotations

import inspect
import os
from types import ModuleType
from typing import Any

from stashtrace.probes import patching, recorder
from stashtrace.probes.recorder import failed
from stashtrace.probes.torch.host_calls.timed_calls import record_call

VARIABLE = "STASHTRACE_BUCKET_MB"
#: Keys of the facts, each followed by the number of the wrapper: "MIB SOURCE", and the bytes of the gradients in the
#: reverse order of the parameters. The same in ``replay/communication/messages.py``.
BUCKET, GRADIENTS = "ddp_bucket", "ddp_gradients"
COLLECTOR = "core"
_OPTIONS = ("bucket_cap_mb", "bucket_cap_mb_list")
#: A byte, and more than any memory: torch counts bytes in 64 bits, and a larger size would end the job.
_LEAST_MIB, _MOST_MIB = 2.0**-20, 2.0**40
#: More gradients than this would fill the string table of a process.
_MOST_GRADIENTS = 4096
#: Wrappers that are recorded; a job that makes one for each step would fill its string table.
_MOST_WRAPPERS = 8


def install(distributed: ModuleType) -> None:
    """Patch the constructor."""
    text = os.environ.get(VARIABLE, "")
    wanted = wanted_mib(text)
    if text and wanted is None:
        recorder.unavailable(COLLECTOR, "bucket_not_applied", f"{VARIABLE}={text!r} is not a size in MiB")
    patching.replace(COLLECTOR, distributed.DistributedDataParallel, "__init__", _constructor(wanted))


def wanted_mib(text: str) -> int | float | None:
    """Return the size in MiB that a text names, as int if it is whole, as torch declares it; None if it names none."""
    try:
        size = float(text)
    except ValueError:
        return None
    if not _LEAST_MIB <= size <= _MOST_MIB:
        return None
    return int(size) if size == int(size) else size


def _constructor(wanted: int | float | None) -> Any:
    recorded_count = 0

    def make(original: Any) -> Any:
        signature = inspect.signature(original)
        takes_size = _OPTIONS[0] in signature.parameters

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal recorded_count
            bound = patching.bind(signature, self, *args, **kwargs)
            if bound is None:
                original(self, *args, **kwargs)  # which raises what it would without us
                return
            begin = recorder.now_ticks()
            own = any(bound.arguments.get(name) is not None for name in _OPTIONS)
            applied = wanted is not None and takes_size and not own
            if applied:
                bound.arguments[_OPTIONS[0]] = wanted
            original(*bound.args, **bound.kwargs)
            record_call(COLLECTOR, begin, "DistributedDataParallel")
            if recorded_count < _MOST_WRAPPERS:
                _record_facts(self, recorded_count, "script" if own else "applied" if applied else "default")
            recorded_count += 1

        return __init__

    return make


def _record_facts(wrapper: Any, number: int, source: str) -> None:
    try:
        recorder.record_fact(f"{BUCKET} {number}", f"{wrapper.bucket_bytes_cap / 2**20:g} {source}")
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        parameters = [p for name, p in wrapper.module.named_parameters() if p.requires_grad and name not in ignored]
        gradients = [p.numel() * p.element_size() for p in parameters]
        if len(gradients) <= _MOST_GRADIENTS:
            recorder.record_fact(f"{GRADIENTS} {number}", " ".join(map(str, reversed(gradients))))
    except Exception as error:
        failed(COLLECTOR, "ddp_facts", error)
