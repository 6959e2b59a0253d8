"""The names that a query may use: the tables of a trace, and the analyses that need no parameters.

Three names are both, ``io``, ``kernels`` and ``collectives``: in a query they are the recorded rows, and their analyses
end in ``_analysis``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stashtrace.analysis.registry import ANALYSES, analyze, find, plugins
from stashtrace.errors import PluginError, UsageError
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

if TYPE_CHECKING:
    import pyarrow

_SUFFIX = "_analysis"


@dataclass(frozen=True, slots=True)
class Named:
    """What a name in a query stands for."""

    #: In the query.
    name: str
    #: Name of the table of the trace, or of the analysis.
    source: str
    is_analysis: bool


def catalog() -> dict[str, Named]:
    """All names in lower case, tables of a trace first. Imports no analysis."""
    analyses = (*(name for name, _, _ in ANALYSES), *plugins())
    listed = [Named(name, name, False) for name in TABLES]
    listed += [Named(name + _SUFFIX if name in TABLES else name, name, True) for name in analyses]
    return {one.name.lower(): one for one in listed}


def rows_of(trace: Trace, named: Named) -> tuple[Table, StringPool]:
    """Rows of a table, or the result of an analysis, with the texts of its codes.

    Raises UsageError if it is an analysis that needs parameters. Raises MissingDataError if the trace lacks what the
    analysis needs. Raises PluginError if it is an analysis of another package, which cannot be loaded or fails.
    """
    if not named.is_analysis:
        return trace.table(named.source), trace.strings
    needed = _needed_parameters(named.source)
    if needed:
        raise UsageError(
            f"analysis {named.source!r} needs {', '.join(needed)}, which a query cannot give",
            hint=f"`stashtrace analyze {named.source} RUN --help` shows its options",
        )
    return analyze(trace, named.source), trace.strings


def _needed_parameters(name: str) -> list[str]:
    parameters = list(inspect.signature(find(name)).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def listing() -> pyarrow.Table:
    """Rows of (name, kind, meaning): what ``show tables`` answers. Imports all analyses of other packages."""
    import pyarrow

    rows = list(_listed())
    columns = zip(*rows, strict=True)
    return pyarrow.table(dict(zip(("name", "kind", "meaning"), map(list, columns), strict=True)))


def _listed() -> Iterator[tuple[str, str, str]]:
    analyses = {name: text for name, _, text in ANALYSES}
    for named in catalog().values():
        if not named.is_analysis:
            yield named.name, "recorded", TABLES[named.source].doc
        elif named.source in analyses:
            yield named.name, "analysis", analyses[named.source]
        elif _of_plugin(named.source):
            yield named.name, "analysis", f"from the package {plugins()[named.source].package}"


def _of_plugin(name: str) -> bool:
    """Return whether an analysis of another package can be used in a query."""
    try:
        return not _needed_parameters(name)
    except PluginError:
        return False


def no_table(name: str) -> UsageError:
    """Return the error of a name that is none, with a hint of near names."""
    near = difflib.get_close_matches(name.lower(), catalog(), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`stashtrace sql --tables` lists them"
    return UsageError(f"no table or analysis is called {name!r}", hint=hint)
