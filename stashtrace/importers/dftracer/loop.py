"""The training loop in DFTracer's functions: waits for batches, what made them, phases, ends of steps.

    loop.iter     [== wait ==]                 [== wait ==]            ("fetch.iter" in newer traces)
    items          [i][i][i][i]                 [i][i][i][i]           TorchDataset.__getitem__, data.item
    loop.yield                [=== the body ===]           [=== the ...
    compute                     [== compute ==]              [== ...
    step mark                                  ^
    items of workers [i][i][i][i][i][i]...                              on other threads, or in processes of their own

DLIO computes by sleeping for as long as a step of the real model takes, so its "compute" is no forward: it stays an
annotation, and steps come from marks. Where a job names forward, backward and the optimizer (the ``ai`` conventions)
these are phases, and steps are found as in our own traces. The turn of a loop that is left by ``break`` is never
recorded by DFTracer; its wait is then what its items span.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.importers.context import ImportContext
from stashtrace.schema.kinds import BatchPhase, Phase, SpanKind

Int64 = npt.NDArray[np.int64]

_LOADERS = ("data_loader", "dataloader")
_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.OPTIMIZER}
#: ``worker_id`` of batches.
_MAIN_PROCESS, _UNSEEN_WORKER = -1, -2
#: Fact of a process whose compute is a sleep in its place: name of the function.
EMULATED = "emulated_compute"
#: Items less than this apart belong to one batch where no turn of the loop tells.
_ITEM_GAP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Functions:
    """Events of one process by what their names say, ordered by begin: columns begin_ns, end_ns, tid.

    ``emulated`` names the function of a benchmark that sleeps for as long as a model would compute, empty if none.
    """

    rows: Mapping[str, dict[str, Int64]]
    emulated: str = ""

    @classmethod
    def of(cls, own: Mapping[str, Int64], names: Sequence[tuple[str, str]]) -> Functions:
        """Sort the events of a process by role; ``own`` has begin_us, length_us, tid, function."""
        roles = np.array([_ROLE_NUMBERS[_role(category, name)] for category, name in names], dtype=np.int64)
        role = roles[own["function"]] if len(names) else np.empty(0, dtype=np.int64)
        rows = {}
        for name, number in _ROLE_NUMBERS.items():
            if name:
                at = np.flatnonzero(role == number)
                at = at[np.argsort(own["begin_us"][at], kind="stable")]
                begin = own["begin_us"][at] * 1000
                rows[name] = {
                    "begin_ns": begin,
                    "end_ns": begin + own["length_us"][at] * 1000,
                    "tid": own["tid"][at],
                }
        used = {names[n] for n in np.unique(own["function"]).tolist()}
        benchmark = any(category.lower() == "dlio_benchmark" for category, _ in used)
        sleeps = sorted(n for c, n in used if _role(c, n) == "compute" and (benchmark or c.lower() == "ai_framework"))
        return cls(rows, sleeps[0] if sleeps else "")

    def __getitem__(self, role: str) -> dict[str, Int64]:
        return self.rows[role]

    def count(self, role: str) -> int:
        """Events of this role."""
        return len(self.rows[role]["begin_ns"])


#: What an event can be to the loop; "" is nothing.
_ROLE_NUMBERS = {
    role: number
    for number, role in enumerate(
        ("", "wait", "fetch", "body", "item", "compute", "forward", "backward", "step", "save", "restore")
    )
}


def _role(category: str, name: str) -> str:
    category, last = category.lower(), name.rpartition(".")[2]
    if category in _LOADERS:
        if last in ("iter", "yield"):
            return "wait" if last == "iter" else "body"
        return "item" if last == "__getitem__" else "fetch" if name == "fetch" else ""
    if category == "data" and name == "item":
        return "item"
    if category == "compute":
        return name if name in _PHASES else "compute" if name == "compute" else ""
    if category == "ai_framework" and last == "compute":
        return "compute"
    if category == "checkpoint":
        if "restart" in last or "load" in last or "restore" in last:
            return "restore"
        return "save" if last.startswith(("save", "checkpoint", "capture")) else ""
    return ""


def has_own_rows(category: str, name: str) -> bool:
    """Whether it becomes a batch, a mark or a phase, each of it, and so is no annotation."""
    return _role(category, name) in ("wait", "body", *_PHASES)


@dataclass(slots=True)
class Loop:
    """Rows to add for one process, and what is to be said of them.

    Attributes
    ----------
    trains : bool
        It waits for batches, has the body of a loop, or computes.
    loads : bool
        It makes items and does not train: a worker of another process.
    """

    trains: bool = False
    loads: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    batches: list[tuple[BatchPhase, dict[str, Any]]] = field(default_factory=list)
    phases: list[tuple[Phase, dict[str, Int64]]] = field(default_factory=list)
    marks: dict[str, Int64] = field(default_factory=dict)

    def place(self, context: ImportContext, process_id: int, tracks: Mapping[int, int]) -> None:
        """Add the rows."""

        def placed(rows: Mapping[str, Any]) -> dict[str, Any]:
            tids = rows["tid"].tolist()
            rest = {name: column for name, column in rows.items() if name != "tid"}
            return {**rest, "track_id": np.array([tracks[tid] for tid in tids], dtype=np.int64)}

        for batch_phase, rows in self.batches:
            context.add("batches", process_id=process_id, phase_code=int(batch_phase), **placed(rows))
        for phase, columns in self.phases:
            context.add("phases", process_id=process_id, phase_code=int(phase), **placed(columns))
        if self.marks:
            context.add(
                "spans", kind_code=int(SpanKind.STEP_MARK), name_code=context.code("step"), **placed(self.marks)
            )


def loop_of(functions: Functions) -> Loop:
    """Find the loop of one process."""
    loop = Loop()
    waits = functions["wait" if functions.count("wait") else "fetch"]
    bodies, computes = functions["body"], functions["compute"]
    named = any(functions.count(role) for role in _PHASES)
    loop.trains = bool(len(waits["begin_ns"]) or len(bodies["begin_ns"]) or functions.count("compute") or named)
    if not loop.trains:
        loop.loads = bool(functions.count("item"))
        _made_by_workers(loop, functions["item"], 0)
        return loop
    if functions.emulated:
        loop.facts[EMULATED] = functions.emulated
    _batches(loop, functions, waits)
    for role, phase in _PHASES.items():
        if functions.count(role):
            loop.phases.append((phase, functions[role]))
    for role, phase in (("save", Phase.CHECKPOINT), ("restore", Phase.CHECKPOINT_LOAD)):
        outer = _outermost(functions[role])
        if len(outer["begin_ns"]):
            loop.phases.append((phase, outer))
    if not functions.count("step"):
        _marks(loop, bodies, computes)
    return loop


def _batches(loop: Loop, functions: Functions, waits: dict[str, Int64]) -> None:
    """Waits with the items made inside them; items of a turn that was not recorded make a wait of their own."""
    items = functions["item"]
    leads = next((functions[r]["tid"] for r in ("compute", *_PHASES, "body") if functions.count(r)), waits["tid"])
    main = (waits["tid"] if len(waits["tid"]) else leads)[0]
    turns = next((functions.count(r) for r in ("compute", "step", "body") if functions.count(r)), len(waits["tid"]))
    _made_by_workers(loop, {name: column[items["tid"] != main] for name, column in items.items()}, turns)
    items = {name: column[items["tid"] == main] for name, column in items.items()}
    at = np.searchsorted(waits["begin_ns"], items["begin_ns"], side="right") - 1
    inside = at >= 0
    inside[inside] = items["end_ns"][inside] <= waits["end_ns"][at[inside]]
    lone = {name: column[~inside] for name, column in items.items()}
    hulls = _hulls(lone, functions["compute"]["begin_ns"])
    if len(hulls["begin_ns"]):
        loop.facts["waits_from_items"] = str(len(hulls["begin_ns"]))
    begin = np.concatenate([waits["begin_ns"], hulls["begin_ns"]])
    order = np.argsort(begin, kind="stable")
    index = np.empty(len(order), dtype=np.int64)
    index[order] = np.arange(len(order))
    end = np.concatenate([waits["end_ns"], hulls["end_ns"]])
    tid = np.concatenate([waits["tid"], hulls["tid"]])
    # What the main thread itself makes inside a wait: from the first item to the last.
    made, first = np.unique(at[inside], return_index=True)
    last = np.append(first[1:], inside.sum())[: len(first)] - 1
    worker = np.full(len(begin), _UNSEEN_WORKER)
    worker[made], worker[len(waits["begin_ns"]) :] = _MAIN_PROCESS, _MAIN_PROCESS
    loop.batches.append(
        (
            BatchPhase.WAIT,
            {"begin_ns": begin, "end_ns": end, "tid": tid, "batch_index": index, "worker_id": worker},
        )
    )
    own = {name: column[inside] for name, column in items.items()}
    made_begin = np.concatenate([own["begin_ns"][first], hulls["begin_ns"]])
    made_end = np.concatenate([own["end_ns"][last], hulls["end_ns"]])
    fetched = np.concatenate([index[made], index[len(waits["begin_ns"]) :]])
    if len(made_begin):
        rows = {"begin_ns": made_begin, "end_ns": made_end, "batch_index": fetched}
        rows["worker_id"] = np.full(len(made_begin), _MAIN_PROCESS)
        loop.batches.append((BatchPhase.FETCH, {**rows, "tid": np.full(len(made_begin), main)}))


def _made_by_workers(loop: Loop, items: dict[str, Int64], turns: int) -> None:
    """What threads beside the loop's, or a process that has no loop, made.

    Where there are k items to each turn of the loop, and of each thread a multiple of k, a batch is k items; else it is
    taken to end where its thread pauses. Which turn got which batch is not told.
    """
    of_threads = [items["tid"] == tid for tid in np.unique(items["tid"]).tolist()]
    outer = [_outermost({name: column[own] for name, column in items.items()}) for own in of_threads]
    counts = [len(own["begin_ns"]) for own in outer]
    count = sum(counts)
    size = count // turns if turns and count % turns == 0 else 0
    if size and any(many % size for many in counts):
        size = 0
    for worker, own in enumerate(outer):
        if size:
            made = {
                "begin_ns": own["begin_ns"][::size],
                "end_ns": np.maximum.reduceat(own["end_ns"], np.arange(0, len(own["end_ns"]), size)),
            }
        else:
            hulls = _hulls(own, np.empty(0, dtype=np.int64))
            made = {"begin_ns": hulls["begin_ns"], "end_ns": hulls["end_ns"]}
        many = len(made["begin_ns"])
        nobody, who = np.full(many, -1), np.full(many, worker)
        rows = {**made, "batch_index": nobody, "worker_id": who, "tid": np.full(many, own["tid"][0])}
        loop.batches.append((BatchPhase.FETCH, rows))
    if count:
        loop.facts["batches_of_workers"] = f"{size} items each" if size else "by pauses between items"


def _hulls(items: dict[str, Int64], computes: Int64) -> dict[str, Int64]:
    """One row per run of items with no long pause and no begin of a compute between them."""
    begin, end = items["begin_ns"], items["end_ns"]
    if not len(begin):
        return items
    turn = np.searchsorted(computes, begin)
    latest = np.maximum.accumulate(end)
    starts = np.append(True, (turn[1:] != turn[:-1]) | (begin[1:] - latest[:-1] > _ITEM_GAP_NS))
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(begin)) - 1
    return {"begin_ns": begin[first], "end_ns": latest[last], "tid": items["tid"][first]}


def _outermost(rows: dict[str, Int64]) -> dict[str, Int64]:
    """Rows that no earlier row of the same thread contains."""
    if not len(rows["begin_ns"]):
        return rows
    reach = np.append(np.int64(-1), np.maximum.accumulate(rows["end_ns"])[:-1])
    return {name: column[rows["end_ns"] > reach] for name, column in rows.items()}


def _marks(loop: Loop, bodies: dict[str, Int64], computes: dict[str, Int64]) -> None:
    """A step ends where the body of its turn ends; without one, where its compute ends."""
    at = np.searchsorted(bodies["begin_ns"], computes["begin_ns"], side="right") - 1
    held = at >= 0
    held[held] = computes["end_ns"][held] <= bodies["end_ns"][at[held]]
    ends = np.concatenate([bodies["end_ns"], computes["end_ns"][~held]])
    tids = np.concatenate([bodies["tid"], computes["tid"][~held]])
    order = np.argsort(ends, kind="stable")
    if len(ends):
        loop.marks = {"begin_ns": ends[order], "end_ns": ends[order], "tid": tids[order]}
        loop.facts["steps_from"] = "turns of the loop"
