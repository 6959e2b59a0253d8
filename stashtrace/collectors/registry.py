"""The decoder of each collector of ``records.def``: the module of the same name. ``loading`` calls it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from stashtrace import _native
from stashtrace.collectors.decode_context import DecodeContext
from stashtrace.schema.trace import EventTables, RawProcess

Decode = Callable[[RawProcess, DecodeContext], EventTables]


@dataclass(frozen=True, slots=True)
class Decoder:
    """One collector's decoder."""

    #: Collector.
    name: str
    #: ``decode(raw, context) -> EventTables``.
    decode: Decode
    #: Record names it reads (``RECORDS`` of its module).
    records: tuple[str, ...]
    #: Tables it fills (``TABLES`` of its module); empty if not declared.
    tables: tuple[str, ...]


def resolve(name: str) -> Decoder | None:
    """Decoder of a collector, None if the schema has none of that name or its module is not there."""
    if name not in {collector["name"] for collector in _native.schema()["collectors"]}:
        return None  # a name out of a file, which may be any
    module_name = f"{__package__}.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            return None
        raise
    return Decoder(name, module.decode, tuple(module.RECORDS), tuple(getattr(module, "TABLES", ())))
