"""All processes of a run on one time line: ``load_trace`` and ``iter_io``.

Opens the run, builds one clock per host, finds out who is who, then lets each room decode one process at
a time and joins the tables. Called by the CLI, the exporters' tests and users (as ``stashtrace.load``).
Rows of a process are dropped as soon as they are decoded, and I/O calls, which can be many, are decoded in
pieces, so memory is that of the tables asked for.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Sequence

from stashtrace.errors import DataLossWarning, UsageError
from stashtrace.loading.foreign import Progress, is_foreign, load_imported
from stashtrace.loading.io import read_io
from stashtrace.loading.join import join_tables
from stashtrace.loading.session import Session
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import Severity
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.store.files import read_store
from stashtrace.store.layout import is_store

Path = str | os.PathLike[str]


def load_trace(
    path: Path | Sequence[Path],
    *,
    tables: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    run_id: str | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load a run, or the files that another tool wrote, as a :class:`Trace`.

    Parameters
    ----------
    path : path or sequence of paths
        Run directory, a single .stash file, or the directories that several hosts left of one run; or files, or a
        folder of files, of another tool (``stashtrace.importers.registry.IMPORTERS``); or a store (``export parquet``).
    tables : collection of str, optional
        Tables to load; the others stay empty. ``io`` is the one that takes memory: above some million calls it
        stays on disk until ``trace.io`` is used. Processes, tracks, losses, alignment and metadata are always there.
    ranks : collection of int, optional
        Ranks to load, with their workers; processes that serve no rank are always there.
    run_id : str, optional
        Which run, if a directory holds several; a prefix will do.
    strict : bool
        Raise on damage that otherwise becomes a row of ``losses`` and a :class:`DataLossWarning`.

    progress : callable, optional
        Called with (bytes read, bytes in all, name of the file) while files of other tools are read.

    Raises
    ------
    FormatError
        If there is nothing to read.
    ImporterError
        If files of other tools hold nothing that could be used.
    UsageError
        If a table or rank is not there.
    """
    if tables is not None and set(tables) - set(TABLES):
        raise UsageError(
            f"no such table: {', '.join(sorted(set(tables) - set(TABLES)))}", hint=f"there are {', '.join(TABLES)}"
        )
    wanted = None if tables is None else frozenset(tables)
    paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(p) for p in path]
    if paths and all(is_foreign(p) for p in paths):
        trace = load_imported(paths, tables=wanted, ranks=ranks, strict=strict, progress=progress)
        _warn(trace)
        return trace
    if len(paths) == 1 and is_store(paths[0]):
        trace = read_store(paths[0], tables=wanted, ranks=ranks)
        _warn(trace)
        return trace
    odd = [p for p in paths if is_store(p) or is_foreign(p)] if len(paths) > 1 else []
    if odd:
        kind = "a store" if is_store(odd[0]) else "of another tool"
        raise UsageError(f"{odd[0]} is {kind}, and goes together with its like only", hint="ask for each apart")
    session = Session.open(paths, run_id=run_id, strict=strict, ranks=ranks)
    parts = [session.decode(index, wanted) for index in range(len(session))]
    # Before the other tables are joined: what is found in the rows goes into processes and losses.
    outline, io = read_io(session, parts) if wanted is None or "io" in wanted else (None, None)
    joined = join_tables(session, parts, wanted)
    if io is not None:
        joined["io"] = io
    trace = Trace(session.strings, joined, path=session.path, io_outline=outline)
    _warn(trace)
    return trace


def iter_io(source: Trace | Path | Sequence[Path], *, ranks: Collection[int] | None = None) -> Iterator[Table]:
    """The ``io`` table in pieces of about a million rows, for runs whose calls do not fit into memory.

    Pieces come by process, thread and time.

    Codes and track ids are those of a trace loaded from the same path with the same ``ranks``, but only for
    a :class:`Trace` as source are its strings extended so that path codes can be looked up in it.

    Parameters
    ----------
    source : Trace, path or sequence of paths
        A trace that holds its ``io`` table in memory gives it whole; one that was loaded without it is read
        again from its path.
    ranks : collection of int, optional
        As in :func:`load_trace`.
    """
    if isinstance(source, Trace):
        if source.io_rows_count:
            yield from source.io_pieces()
            return
        session = Session.open(source.path.split(os.pathsep), ranks=ranks, strings=source.strings)
    else:
        session = Session.open(source, ranks=ranks)
    for index in range(len(session)):
        yield from session.io_pieces(index)


def _warn(trace: Trace) -> None:
    losses = trace.losses
    serious = losses.take(losses["severity_code"] == int(Severity.DATA_LOSS))
    if len(serious):
        reasons = sorted({trace.text(c) for c in serious["name_code"]})
        warnings.warn(
            f"{trace.path}: something is missing ({', '.join(reasons)}); see the losses table",
            DataLossWarning,
            stacklevel=3,
        )
