"""stashtrace: where did each nanosecond of each step of each rank go.

The public names are loaded on first use, so ``import stashtrace`` costs nothing inside a traced job and
pulls in no numpy there. Everything that is not in ``__all__`` is private.
"""

from __future__ import annotations

import importlib

# Not from typing, whose import would cost every Python of a traced job three milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stashtrace import errors
    from stashtrace.analysis.registry import analyze
    from stashtrace.exporters.registry import export
    from stashtrace.loading.load import load_trace as load
    from stashtrace.probes.annotations import annotate, flush, step
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace

__version__ = "0.1.0"

__all__ = ["Table", "Trace", "__version__", "analyze", "annotate", "errors", "export", "flush", "load", "step"]

_TARGETS = {
    "Table": "stashtrace.schema.table:Table",
    "Trace": "stashtrace.schema.trace:Trace",
    "analyze": "stashtrace.analysis.registry:analyze",
    "annotate": "stashtrace.probes.annotations:annotate",
    "errors": "stashtrace.errors:",
    "export": "stashtrace.exporters.registry:export",
    "flush": "stashtrace.probes.annotations:flush",
    "load": "stashtrace.loading.load:load_trace",
    "step": "stashtrace.probes.annotations:step",
}


def __getattr__(name: str) -> Any:
    target = _TARGETS.get(name)
    if target is None:
        raise AttributeError(f"module 'stashtrace' has no attribute {name!r}")
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    value = globals()[name] = getattr(module, attribute) if attribute else module
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
