"""``analyze`` of a store: the analysis on each rank as tasks of Dask, then a small reduction.

No analysis is implemented twice: a part is the analysis itself on a trace of one rank, whose store also holds the facts
that need all ranks. Tasks run on threads of this process by default, or on separate processes, or on a Dask cluster
given by its address, whose workers must see the store under the same path. Users call
``stashtrace.fleet.analyze.analyze``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stashtrace.analysis.registry import find
from stashtrace.analysis.stalls.budget import stall_totals
from stashtrace.analysis.stragglers.stragglers import LAST_RANKS, STRAGGLERS, alone_missing, last_counts
from stashtrace.errors import MissingDataError, StashtraceError, UsageError
from stashtrace.schema.columns import Schema
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.store.files import load_store, store_ranks

Options = dict[str, Any]
#: For each part, the tables of the ranks that have one.
Parts = Sequence[Sequence[Table]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Division of an analysis into parts."""

    #: Analyses, or ``module:function`` with the same signature, to run on each rank.
    parts: tuple[str, ...]
    #: Maps (parts of each analysis in order of ranks, all ranks, options of the user) to the result.
    joined: Callable[[Parts, Sequence[int], Options], Table]
    #: Maps options of the user to those of the parts.
    part_options: Callable[[Options], Options] = dict


def _concatenate(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Return the rows of all ranks, rank by rank."""
    return Table.concat(parts[0][0].schema, parts[0])


def _stalls(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Sum parts over ranks that are already summed over their steps."""
    return stall_totals(Table.concat(parts[0][0].schema, parts[0]), options["by"])


def _stragglers(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Sum times over the ranks that lost them; count the last rank of each collective once, among all ranks."""
    found = Table.concat(STRAGGLERS, parts[0])
    waited = Table.concat(LAST_RANKS, parts[1])
    last, alone = last_counts(waited), alone_missing(waited)
    listed = np.unique(np.concatenate([np.asarray(ranks, dtype=np.int64), found["rank"], last[last >= 0]]))
    counts = np.bincount(np.searchsorted(listed, last[last >= 0]), minlength=len(listed))
    sums = {"rank": listed, "last_count": counts}
    for name in ("caused_wait_ns", "wait_ns"):
        total = np.zeros(len(listed), dtype=np.int64)
        np.add.at(total, np.searchsorted(listed, found["rank"]), found[name])
        sums[name] = total
    sums["behind_second_ns"] = np.array([alone.get(rank, 0) for rank in listed.tolist()], dtype=np.int64)
    return Table(STRAGGLERS, sums)


def plan_of(name: str, options: Options) -> Plan | None:
    """Return the plan of an analysis with these options; None if it needs all ranks in one process."""
    if name == "stalls" and options.get("by", "step") != "step":
        return Plan(("stashtrace.analysis.stalls.budget:stalls_counted",), _stalls, _without_by)
    return PLANS.get(name)


def _without_by(options: Options) -> Options:
    return {name: value for name, value in options.items() if name != "by"}


_PER_RANK = (
    "steps",
    "stalls",
    "straggler_causes",
    "hidden",
    "collectives",
    "stall_intervals",
    "breakdown",
    "idle",
    "launches",
    "copies",
)

#: Analysis -> plan. Other analyses need all ranks in one process: ``stashtrace.load(store)``.
PLANS: dict[str, Plan] = {
    **{name: Plan((name,), _concatenate) for name in _PER_RANK},
    "stragglers": Plan(("stragglers", "stashtrace.analysis.stragglers.stragglers:last_ranks"), _stragglers),
}


Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def on_cluster(
    call: Callable[[Chunk], Result], chunks: Sequence[Chunk], cluster: str, finished: Callable[[Chunk], None]
) -> list[Result]:
    """Call a function with each chunk on the workers of a cluster, and call ``finished`` with each chunk that is done.

    ``cluster``: address of a Dask scheduler, e.g. ``tcp://host:8786``. Raises StashtraceError if distributed is not
    installed, or the cluster does not answer.
    """
    if find_spec("distributed") is None:
        raise StashtraceError("a Dask cluster needs distributed", hint="pip install 'stashtrace[fleet]'")
    from distributed import Client, as_completed

    try:
        client = Client(cluster, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise StashtraceError(f"no Dask scheduler answers at {cluster}", hint="start one: dask scheduler") from error
    with client:
        futures = [client.submit(call, chunk, pure=False) for chunk in chunks]
        place = {future.key: at for at, future in enumerate(futures)}
        for future in as_completed(futures):
            finished(chunks[place[future.key]])
        return list(client.gather(futures))


#: Called with (ranks done, ranks in all).
Progress = Callable[[int, int], None]
#: A table as it is sent between processes: schema, columns, texts behind its codes.
_Packed = tuple[Schema, dict[str, Any], list[str]]

#: Result of one rank: a table per part, or the error that says why there is none.
_Answers = list["_Packed | MissingDataError"]

#: Ranks per task: a task costs a millisecond, a rank tens of milliseconds.
_RANKS_AT_ONCE = 8
#: From this number of tasks on, processes are faster than threads.
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
        One of :data:`PLANS`.
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
            f"the analysis {name} needs all ranks at once", hint="load the store instead: stashtrace.load(store)"
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


def part(store: str, names: Sequence[str], options: dict[str, Any], ranks: Sequence[int]) -> list[_Answers]:
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
        return on_cluster(partial(part, store, names, options), chunks, cluster, finished)
    import dask
    from dask.callbacks import Callback

    cores = workers or os.cpu_count() or 1
    # A part holds the GIL half of its time, so threads gain little; new processes take a second to start.
    apart = processes and cores > 1 and len(chunks) >= _WORTH_PROCESSES
    names_of_tasks = {f"part-{at}": chunk for at, chunk in enumerate(chunks)}
    delayed = [
        dask.delayed(part, pure=False)(store, names, options, chunk, dask_key_name=key)
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
