"""Public names for packages that add analyses, importers or exporters to stashtrace.

The names in ``__all__`` stay here when the modules behind them move. Each is loaded on first use.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stashtrace.analysis.registry import analyze
    from stashtrace.errors import ImporterError, MissingDataError, StashtraceError, UsageError
    from stashtrace.exporters.registry import Exported
    from stashtrace.importers.context import ImportContext
    from stashtrace.importers.source import Source
    from stashtrace.schema.columns import Column, Schema
    from stashtrace.schema.kinds import BatchPhase, CollectiveOp, IoOp, Phase, ProcessRole, Severity, SpanKind, WaitOp
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace

__all__ = [
    "BatchPhase",
    "CollectiveOp",
    "Column",
    "Exported",
    "ImportContext",
    "ImporterError",
    "IoOp",
    "MissingDataError",
    "Phase",
    "ProcessRole",
    "Schema",
    "Severity",
    "Source",
    "SpanKind",
    "StashtraceError",
    "Table",
    "Trace",
    "UsageError",
    "WaitOp",
    "analyze",
]

_HOMES = {
    "stashtrace.analysis.registry": ("analyze",),
    "stashtrace.errors": ("ImporterError", "MissingDataError", "StashtraceError", "UsageError"),
    "stashtrace.exporters.registry": ("Exported",),
    "stashtrace.importers.context": ("ImportContext",),
    "stashtrace.importers.source": ("Source",),
    "stashtrace.schema.columns": ("Column", "Schema"),
    "stashtrace.schema.kinds": (
        "BatchPhase",
        "CollectiveOp",
        "IoOp",
        "Phase",
        "ProcessRole",
        "Severity",
        "SpanKind",
        "WaitOp",
    ),
    "stashtrace.schema.table": ("Table",),
    "stashtrace.schema.trace": ("Trace",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'stashtrace.plugins' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
