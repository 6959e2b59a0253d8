"""What the search for slow steps reads: a row a rank and step, with a column for each kind of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.schema import columns as col
from stashtrace.schema.columns import INTERVAL, RANK, schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.schema.table import Table

#: Kind of time -> its column.
KIND_COLUMNS = {kind: f"{kind}_ns" for kind in KIND_NAMES}
STEP_TIMES = schema(
    "step_times",
    "Time of each step of each rank by kind; the kinds of a step sum to its length",
    RANK,
    col.number("step", "ordinal"),
    col.word("step_kind", "steps.kind"),
    *INTERVAL,
    *(col.ns(name, f"time of the kind {kind}") for kind, name in KIND_COLUMNS.items()),
    col.rank("cause_rank", "rank that was waited for longest, -1 if none or unknown", missing=-1),
)
_STRAGGLER = StallKind.STRAGGLER.name.lower()


def step_times(steps: Table, stalls: Table) -> Table:
    """Return a row for each row of ``steps``; ``stalls``: rows by step of these steps, maybe among others."""
    row = GroupBy(steps["rank"], steps["step"]).row_of(stalls["rank"], stalls["step"])
    columns: dict[str, npt.NDArray[Any]] = {name: steps[name] for name in ("rank", "step", "begin_ns", "end_ns")}
    columns["step_kind"] = steps["kind"]
    columns["cause_rank"] = np.full(len(steps), -1)
    for kind, name in KIND_COLUMNS.items():
        chosen = np.flatnonzero((stalls["kind"] == kind) & (row >= 0))
        columns[name] = np.zeros(len(steps), dtype=np.int64)
        columns[name][row[chosen]] = stalls["stall_ns"][chosen]
        if kind == _STRAGGLER:
            columns["cause_rank"][row[chosen]] = stalls["cause_rank"][chosen]
    return Table(STEP_TIMES, columns)
