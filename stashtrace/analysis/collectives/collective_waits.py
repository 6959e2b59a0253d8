"""collectives: how long each rank waited for the last one to enter, and how long the bytes then took."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.device_collectives import on_devices
from stashtrace.analysis.collectives.matching import match, process_values
from stashtrace.analysis.intervals import NEVER
from stashtrace.analysis.steps.steps import step_at_any
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import SYNCHRONISING_OPS, CollectiveOp, ElementType
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

COLLECTIVE_TIMES = col.schema(
    "collective_times",
    "One row per rank and collective: waiting for the last rank, then moving bytes",
    col.RANK,
    col.number("step", "ordinal of the step it was called in, -1 outside", missing=-1),
    col.word("communicator", "name of the group", detail=2),
    col.number("sequence", "number within the group", detail=4),
    col.word("op", "CollectiveOp in lower case"),
    col.Column("bytes", "i8", "bytes", "payload of this rank's input"),
    col.word("element_type", "type of its elements, of several tensors the first's; empty if unknown", detail=3),
    *col.INTERVAL,
    col.ns("wait_ns", "from the call of this rank to that of the last rank"),
    col.ns("transfer_ns", "from there to the end, queueing included"),
    col.rank("last_rank", "the rank that was waited for, -1 if none", missing=-1),
    col.word("method", "clock: by the ranks' times; duration: the shortest rank's duration is the transfer", detail=7),
)


def collectives(trace: Trace) -> Table:
    """Split every collective of every rank into wait and transfer.

    Operations in which nobody can end before everybody has entered: ``wait = last enter - own enter``, ``transfer = end
    - last enter``, clipped to the rank's interval. Rooted ones wait for the root's data only (or the root for all),
    a receive for its send. This includes what was hidden behind compute; the exposed part is in ``stalls``. Where the
    clocks of the ranks are not good enough for an operation, the shortest duration of all ranks is the transfer
    (``method`` duration). Where ranks of different hosts entered closer together than their clocks can resolve,
    ``last_rank`` is -1. An operation that never ended lasts until its process does. Times of an operation that a device
    was seen to run are the device's. Columns: table ``collective_times`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives; steps if there are any.

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    """
    return collective_rows(trace).sort_by("begin_ns", "rank")


def collective_rows(trace: Trace) -> Table:
    """The rows of :func:`collectives` in the order of ``trace.collectives``, for analyses that add columns to them."""
    table = trace.collectives
    if len(table) == 0:
        raise MissingDataError(
            "no collective was recorded", hint="run more than one rank with the collector torch_distributed on"
        )
    devices = on_devices(trace)
    matched = devices.over(match(trace))
    begin = np.where(devices.timed, devices.enter_ns, table["call_ns"])
    last = process_values(trace, table["process_id"], "end_ns")
    end = np.where(matched.end_ns == NEVER, np.maximum(last, begin), matched.end_ns)
    entered = np.clip(matched.last_enter_ns, begin, end)
    ordered = matched.ordered | ~np.isin(table["op_code"], SYNCHRONISING_OPS)
    # In an operation that somebody never entered, even a call at the very end of the recording waits.
    never = matched.last_enter_ns == NEVER
    waited = ((entered > begin) | never) & (matched.last_rank != table["rank"]) & ordered
    return Table(
        COLLECTIVE_TIMES,
        {
            "rank": table["rank"],
            "step": step_at_any(trace, table["rank"], begin),
            "communicator": communicator_names(trace, table["group_hash"]),
            "sequence": table["sequence"],
            "op": np.array([op.name.lower() for op in CollectiveOp])[np.clip(table["op_code"], 0, max(CollectiveOp))],
            "bytes": table["message_bytes"],
            "element_type": element_names(table["element_code"]),
            "begin_ns": begin,
            "end_ns": end,
            "wait_ns": entered - begin,
            "transfer_ns": end - entered,
            "last_rank": np.where(waited, matched.last_rank, -1),
            "method": np.where(matched.by_clock, "clock", "duration"),
        },
    )


def element_names(code: npt.NDArray[np.integer]) -> npt.NDArray[np.str_]:
    """Return the names of element types; empty for an unknown one."""
    names = np.array(["", *(one.name.lower() for one in ElementType if one)])
    return np.asarray(names[np.clip(code, 0, len(names) - 1)])


def communicator_names(trace: Trace, group_hash: np.ndarray) -> np.ndarray:
    """Name of each of these groups."""
    groups = trace.groups
    names = {int(h): trace.text(c) for h, c in zip(groups["group_hash"], groups["name_code"], strict=True)}
    return GroupBy(group_hash).map(lambda group: names.get(group) or f"group {group:x}", np.str_)
