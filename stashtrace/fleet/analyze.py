"""``analyze`` of a store: the analysis on each rank as tasks of Dask, then a small reduction.

Tasks run on threads of this process by default, or on separate processes, or on a Dask cluster given by its address.
The workers of a cluster must see the store under the same path. Used by the CLI for stores, and by users as
``stashtrace.fleet.analyze.analyze``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.registry import find
from stashtrace.errors import MissingDataError, StashtraceError, UsageError
from stashtrace.fleet.plans import plan_of
from stashtrace.fleet.tasks import on_cluster
from stashtrace.schema.columns import Schema
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.store.files import load_store, store_ranks

#: Called with (ranks done, ranks in all).
Progress = Callable[[int, int], None]
#: A table as it is sent between processes: schema, columns, texts behind its codes.
_Packed = tuple[Schema, dict[str, Any], list[str]]

#: Result of one rank: a table per part, or the error that says why there is none.
_Answers = list["_Packed | MissingDataError"]

#: Ranks per task: a task costs a millisecond, a rank tens of milliseconds.
_RANKS_AT_ONCE = 8
#: With at least so many tasks, processes are faster than threads.
_WORTH_PROCESSES = 8


def analyze(
    store: str | Path,
    name: str,
    *,
    cluster: str | None = None,
    workers: int | None = None,
    processes: bool = False,
    ranks: Sequence[int] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Table, StringPool]:
    """Run an analysis over the partitions of a store.

    Parameters
    ----------
    store : path
        Store written by ``stashtrace export parquet``.
    name : str
        One of ``stashtrace.fleet.plans.PLANS``.
    cluster : str, optional
        Address of a Dask scheduler, e.g. ``tcp://host:8786``; threads of this process by default.
    workers : int, optional
        Number of threads or processes; by default the number of cores.
    processes : bool
        Run many ranks on processes, not threads: twice as fast on two cores. The main part of a script must then be
        guarded by ``if __name__ == "__main__"``, as multiprocessing requires.
    ranks : sequence of int, optional
        Return only these ranks; the others still count as ranks that they waited for.
    progress : callable, optional
        Called with (ranks done, ranks in all).
    **options
        Of the analysis.

    Returns
    -------
    Table, StringPool
        The rows that the analysis gives on the whole trace, and the texts behind their codes.

    Raises
    ------
    UsageError
        If the analysis has no plan.
    MissingDataError
        If no rank holds what the analysis needs.
    StashtraceError
        If Dask is not installed, or the cluster does not answer.
    """
    plan = plan_of(name, options)
    if plan is None:
        raise UsageError(
            f"the analysis {name} looks at all ranks at once", hint="load the store instead: stashtrace.load(store)"
        )
    path = Path(store)
    chosen = list(store_ranks(path) if ranks is None else ranks)
    chunks = [chosen[at : at + _RANKS_AT_ONCE] for at in range(0, len(chosen), _RANKS_AT_ONCE)]
    part_options = plan.part_options(options)
    done = 0

    def finished(chunk: Sequence[int]) -> None:
        nonlocal done
        done += len(chunk)
        if progress is not None:
            progress(done, len(chosen))

    results = _compute(str(path.absolute()), plan.parts, chunks, part_options, cluster, workers, processes, finished)
    strings = StringPool()
    parts: list[list[Table]] = []
    errors: list[MissingDataError] = []
    for at in range(len(plan.parts)):
        answers = [rank[at] for chunk in results for rank in chunk]
        parts.append([_unpack(answer, strings) for answer in answers if not isinstance(answer, MissingDataError)])
        errors += [answer for answer in answers if isinstance(answer, MissingDataError)]
    if not any(parts):
        raise errors[0] if errors else MissingDataError(f"{store} holds no rank")
    return plan.joined(parts, chosen, options), strings


def part(store: str, names: Sequence[str], ranks: Sequence[int], options: dict[str, Any]) -> list[_Answers]:
    """Return each rank's tables, with an error in place of a table that the rank has no data for. Runs in a task."""
    functions = [_function(name) for name in names]
    out: list[_Answers] = []
    for rank in ranks:
        trace, numbers = load_store(store, ranks=[rank])
        answers: _Answers = []
        for at, call in enumerate(functions):
            try:
                answers.append(_pack(call(trace, **(options if at == 0 else {})), trace.strings, numbers))
            except MissingDataError as error:
                answers.append(error.with_traceback(None))  # its frames hold the rank's rows
        out.append(answers)
    return out


def _part_of(store: str, names: Sequence[str], options: dict[str, Any], ranks: Sequence[int]) -> list[_Answers]:
    return part(store, names, ranks, options)


def _function(name: str) -> Callable[..., Table]:
    module, colon, function = name.partition(":")
    if not colon:
        return find(name)
    part_of_plan: Callable[..., Table] = getattr(importlib.import_module(module), function)
    return part_of_plan


def _compute(
    store: str,
    names: Sequence[str],
    chunks: Sequence[Sequence[int]],
    options: dict[str, Any],
    cluster: str | None,
    workers: int | None,
    processes: bool,
    finished: Callable[[Sequence[int]], None],
) -> list[list[_Answers]]:
    if find_spec("dask") is None:
        raise StashtraceError("analysing a store rank by rank needs Dask", hint="pip install 'stashtrace[fleet]'")
    if cluster is not None:
        return on_cluster(partial(_part_of, store, names, options), chunks, cluster, finished)
    import dask
    from dask.callbacks import Callback

    cores = workers or os.cpu_count() or 1
    # A part holds the GIL half of its time, so threads gain little; new processes take a second to start.
    apart = processes and cores > 1 and len(chunks) >= _WORTH_PROCESSES
    names_of_tasks = {f"part-{at}": chunk for at, chunk in enumerate(chunks)}
    delayed = [
        dask.delayed(part, pure=False)(store, names, chunk, options, dask_key_name=key)
        for key, chunk in names_of_tasks.items()
    ]

    class Done(Callback):  # type: ignore[misc]
        """Counts finished parts."""

        def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
            if key in names_of_tasks:
                finished(names_of_tasks[key])

    with Done():
        results = dask.compute(*delayed, scheduler="processes" if apart else "threads", num_workers=cores)
    return list(results)


def _pack(table: Table, strings: StringPool, numbers: Mapping[str, Array]) -> _Packed:
    """Return a result with the texts of its codes, and with the whole store's numbers of tracks and processes."""
    columns: dict[str, Any] = {}
    texts: list[str] = []
    for column in table.schema.columns:
        values = table[column.name]
        if column.is_text:
            codes, values = np.unique(values, return_inverse=True)
            values = values.astype(np.int64) + len(texts)
            texts += [strings.text(code) for code in codes.tolist()]
        known = numbers.get(table.schema.keys.get(column.name, ""))
        if known is not None and len(known):
            values = np.where(values >= 0, known[np.maximum(values, 0)], values)
        columns[column.name] = values
    return table.schema, columns, texts


def _unpack(packed: _Packed, strings: StringPool) -> Table:
    schema, columns, texts = packed
    known = strings.codes(texts)
    texts_of = {c.name for c in schema.columns if c.is_text}
    return Table(schema, {n: known[v] if n in texts_of and len(v) else v for n, v in columns.items()})
