"""Public names for packages that add analyses, importers or exporters to stashtrace.

The names in ``__all__`` stay here when the modules behind them move.
"""

from __future__ import annotations

from stashtrace.analysis.registry import analyze
from stashtrace.errors import ImporterError, MissingDataError, StashtraceError, UsageError
from stashtrace.exporters.registry import Exported
from stashtrace.importers.import_context import ImportContext
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
