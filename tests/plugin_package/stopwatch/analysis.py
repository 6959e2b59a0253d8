"""How long each rank spent in each phase."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stashtrace.plugins import Column, MissingDataError, Phase, Schema, Table, Trace

PHASE_TOTALS = Schema(
    "phase_totals",
    (
        Column("rank", "i8", unit="", doc="global rank"),
        Column("phase_code", "i8", unit="", doc="name of the phase", role="text"),
        Column("phases_count", "i8", unit="", doc="how many there were"),
        Column("total_ns", "i8", unit="ns", doc="their time together"),
    ),
    "Time of each rank in each phase",
)


def phase_totals(
    trace: Trace,
    *,
    shortest_ns: int = 0,
    ranks: list[int] | None = None,
    order: Literal["rank", "time"] = "rank",
    checkpoints: bool = True,
) -> Table:
    """Time of each rank in each phase.

    Parameters
    ----------
    trace : Trace
        Needs phases.
    shortest_ns : int
        Phases shorter than this do not count, 100% of them
        in ns.
    ranks : list of int, optional
        Only these ranks.
    order : {"rank", "time"}
        By rank and phase, or the longest first.
    checkpoints : bool
        Whether checkpoints count.

    Columns
    -------
    rank, phase_code, phases_count, total_ns

    Raises
    ------
    MissingDataError
        If no rank has phases.
    """
    phases = trace.phases
    if not len(phases):
        raise MissingDataError("no rank has phases", hint="record the job with the collector torch_step")
    lengths_ns = phases["end_ns"] - phases["begin_ns"]
    rank_of_process = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    rank = np.array([rank_of_process[process] for process in phases["process_id"].tolist()])
    chosen = lengths_ns >= shortest_ns
    if ranks is not None:
        chosen &= np.isin(rank, ranks)
    if not checkpoints:
        chosen &= phases["phase_code"] != int(Phase.CHECKPOINT)
    keys, group = np.unique(np.stack([rank, phases["phase_code"]])[:, chosen], axis=1, return_inverse=True)
    total_ns = np.zeros(keys.shape[1], dtype=np.int64)
    np.add.at(total_ns, group.ravel(), lengths_ns[chosen])
    names = trace.strings.codes([Phase(code).name.lower() for code in keys[1].tolist()])
    counts = np.bincount(group.ravel(), minlength=keys.shape[1])
    table = Table(PHASE_TOTALS, {"rank": keys[0], "phase_code": names, "phases_count": counts, "total_ns": total_ns})
    return table.take(np.argsort(-total_ns, kind="stable")) if order == "time" else table
