"""The timeline of a trace in Perfetto's trace processor, to be asked in PerfettoSQL from Python.

The package ``perfetto`` is a client; the processor is a program, ``trace_processor_shell``, which it downloads when it
is first used. Where there is no network, a file of that program can be named.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.errors import StashtraceError, UsageError
from stashtrace.exporters.registry import check_options
from stashtrace.registry import one_line
from stashtrace.schema.trace import Trace
from stashtrace.timeline.timeline import export_perfetto

if TYPE_CHECKING:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

_NO_PROGRAM = (
    "perfetto downloads the program trace_processor_shell when it is first used; where it cannot, name a file of it:"
    " trace.perfetto(bin_path=FILE)"
)


def trace_processor(
    trace: Trace,
    *,
    bin_path: str | os.PathLike[str] | None = None,
    config: TraceProcessorConfig | None = None,
    **options: Any,
) -> TraceProcessor:
    """Start a trace processor on the timeline; :meth:`stashtrace.Trace.perfetto` says what it takes and raises."""
    check_options("perfetto", export_perfetto, options)
    if bin_path is not None and config is not None:
        raise UsageError("bin_path and config cannot both be given", hint="TraceProcessorConfig(bin_path=FILE)")
    if bin_path is not None and not Path(bin_path).is_file():
        raise UsageError(f"{os.fspath(bin_path)} is no file", hint=_NO_PROGRAM)
    if find_spec("perfetto") is None:
        raise StashtraceError(
            "this needs the package perfetto, which is not installed", hint="`pip install 'stashtrace[perfetto]'`"
        )
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
    except Exception as error:  # besides ImportError, what protobuf raises of code made by another version
        raise StashtraceError(
            f"the package perfetto cannot be imported: {one_line(error)}",
            hint="its newest version needs `pip install 'protobuf>=6.31'`",
        ) from error
    if config is None:
        config = TraceProcessorConfig(bin_path=None if bin_path is None else os.fspath(bin_path))
    with tempfile.TemporaryDirectory(prefix="stashtrace-") as folder:
        timeline = Path(folder) / "timeline.pftrace"
        export_perfetto(trace, timeline, **options)
        try:
            return TraceProcessor(trace=str(timeline), config=config)
        except Exception as error:  # perfetto raises plain Exception, and what a download raises, of many kinds
            raise StashtraceError(
                f"Perfetto's trace processor does not start: {one_line(error)}", hint=_NO_PROGRAM
            ) from error
