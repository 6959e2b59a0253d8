"""Which decoder reads which collector's records. Resolved on use; one line per room."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from stashtrace.collectors.context import DecodeContext
from stashtrace.model.trace import EventTables, RawProcess

#: (collector, "module:function", what its records tell)
COLLECTORS: tuple[tuple[str, str, str], ...] = (
    ("core", "stashtrace.collectors.core:decode", "threads, losses and facts about the process"),
    ("annotations", "stashtrace.collectors.annotations:decode", "names given by the user, counters, probes' own time"),
    ("posix_io", "stashtrace.collectors.posix_io:decode", "file I/O calls"),
    ("waits", "stashtrace.collectors.waits:decode", "blocking waits of watched threads"),
    ("proc", "stashtrace.collectors.proc:decode", "CPU, run queue, page cache, pressure, network"),
    ("nvml", "stashtrace.collectors.nvml:decode", "counters of devices and RDMA ports"),
    ("torch_dataloader", "stashtrace.collectors.torch_dataloader:decode", "phases of DataLoader batches"),
    ("torch_step", "stashtrace.collectors.torch_step:decode", "forward, backward, optimizer, checkpoint"),
    ("torch_distributed", "stashtrace.collectors.torch_distributed:decode", "collectives and process groups"),
    ("cuda", "stashtrace.collectors.cuda:decode", "devices, streams, brackets, blocking calls"),
    ("nccl", "stashtrace.collectors.nccl:decode", "NCCL's communicators and operations, timed by the device"),
    ("cupti", "stashtrace.collectors.cupti:decode", "kernels and copies, in deep mode"),
)

Decoder = Callable[[RawProcess, DecodeContext], EventTables]


@dataclass(frozen=True, slots=True)
class Room:
    """One collector's decoder.

    Attributes
    ----------
    name : str
        Collector.
    decode : callable
        ``decode(raw, context) -> EventTables``.
    records : tuple of str
        Record names it reads (``RECORDS`` of its module).
    tables : tuple of str
        Tables it fills (``TABLES`` of its module); empty if not declared.
    """

    name: str
    decode: Decoder
    records: tuple[str, ...]
    tables: tuple[str, ...]


def resolve(name: str) -> Room | None:
    """Room of a collector, None if the registry has none or its module is not there."""
    for known, target, _ in COLLECTORS:
        if known == name:
            module_name, _, function = target.partition(":")
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError as error:
                if error.name == module_name:
                    return None
                raise
            return Room(name, getattr(module, function), tuple(module.RECORDS), tuple(getattr(module, "TABLES", ())))
    return None
