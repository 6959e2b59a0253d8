"""Runs all that can be done with a trace: every analysis, every exporter, the summary.

For tests of damaged and lost input, which ask one thing: that nothing but a ``StashtraceError`` comes out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stashtrace.analysis.registry import ANALYSES, analyze
from stashtrace.errors import StashtraceError
from stashtrace.exporters.registry import EXPORTERS, export
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

#: Options without which an exporter does nothing.
_OPTIONS: dict[str, dict[str, Any]] = {name: {"table": "stalls"} for name in ("csv", "parquet", "arrow")}
_SUFFIX = {"perfetto": ".pftrace", "store": ""}


def summarize(trace: Trace) -> str:
    """What `stashtrace merge` says of a trace."""
    return summary(trace, shown="./run")


def faults_of_everything(trace: Trace, folder: Path) -> list[str]:
    """Names of the analyses and exporters out of which something else than a StashtraceError came, with the error."""
    tasks: dict[str, Callable[[], object]] = {"summary": lambda: summarize(trace)}
    for name, _, _ in ANALYSES:
        tasks[f"analyze {name}"] = lambda name=name: analyze(trace, name)  # type: ignore[misc]
    for name, _, _ in EXPORTERS:
        path = folder / f"out-{name}{_SUFFIX.get(name, '.' + name)}"
        tasks[f"export {name}"] = lambda name=name, path=path: export(trace, name, path, **_OPTIONS.get(name, {}))  # type: ignore[misc]
    return [f"{what}: {error}" for what, task in tasks.items() if (error := fault_of(task))]


def fault_of(task: Callable[[], object]) -> str:
    """What a task raised if it is no StashtraceError, with the place; empty otherwise."""
    try:
        task()
    except StashtraceError:
        return ""
    except Exception as error:
        frame = inspect.trace()[-1]
        return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
    return ""
