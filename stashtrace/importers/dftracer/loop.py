"""The training loop in DFTracer's functions: waits for batches, what made them, phases, ends of steps.

    loop.iter     [== wait ==]                 [== wait ==]            ("fetch.iter" in newer traces)
    items          [i][i][i][i]                 [i][i][i][i]           TorchDataset.__getitem__, data.item
    loop.yield                [=== the body ===]           [=== the ...
    compute                     [== compute ==]              [== ...
    step mark                                  ^
    items of workers [i][i][i][i][i][i]...                              on other threads, or in separate processes

DLIO computes by sleeping for as long as a step of the real model takes, so its "compute" is not a forward: it stays an
annotation, and steps come from marks. Where a job names forward, backward and the optimizer (the ``ai`` conventions)
these are phases, and steps are found as in our traces. The turn of a loop that is left by ``break`` is never
recorded by DFTracer; its wait is then what its items span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stashtrace.importers.import_context import Bools, ImportContext, Int64, per_distinct, stretches
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import MAIN_PROCESS, UNSEEN_WORKER, BatchPhase, Phase, SpanKind
from stashtrace.schema.trace import EMULATED

#: Columns of events of one role, in the order of their begins: begin_ns, end_ns, tid.
_Rows = dict[str, Int64]

_LOADERS = ("data_loader", "dataloader")
_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.OPTIMIZER}
#: Items less than this apart belong to one batch where no turn of the loop shows.
_ITEM_GAP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Functions:
    """Events of one process by their role in the loop.

    ``emulated`` names the function of a benchmark that sleeps for as long as a model would compute, empty if none.
    """

    rows: Mapping[str, _Rows]
    emulated: str = ""

    @classmethod
    def of(cls, events: Mapping[str, Int64], names: Sequence[tuple[str, str]]) -> Functions:
        """Group the events of a process by role; ``events`` has begin_us, length_us, tid, function."""
        roles = np.array([_ROLE_NUMBERS[_role(category, name)] for category, name in names], dtype=np.int64)
        role = roles[events["function"]] if len(names) else np.empty(0, dtype=np.int64)
        rows = {}
        for name, number in _ROLE_NUMBERS.items():
            if name:
                at = np.flatnonzero(role == number)
                at = at[np.argsort(events["begin_us"][at], kind="stable")]
                begin, length = events["begin_us"][at] * 1000, events["length_us"][at] * 1000
                rows[name] = {"begin_ns": begin, "end_ns": begin + length, "tid": events["tid"][at]}
        used = {names[n] for n in np.unique(events["function"]).tolist()}
        benchmark = any(category.lower() == "dlio_benchmark" for category, _ in used)
        sleeps = sorted(n for c, n in used if _role(c, n) == "compute" and (benchmark or c.lower() == "ai_framework"))
        return cls(rows, sleeps[0] if sleeps else "")

    def __getitem__(self, role: str) -> _Rows:
        return self.rows[role]

    def count(self, role: str) -> int:
        """Return the number of events of this role."""
        return len(self.rows[role]["begin_ns"])


#: Roles of events in the loop; "" is none.
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
    """Return True for functions whose every event becomes a batch, a mark or a phase, and so is not an annotation."""
    return _role(category, name) in ("wait", "body", *_PHASES)


@dataclass(slots=True)
class Loop:
    """Rows to add for one process, and facts about them."""

    #: The process waits for batches, has the body of a loop, or computes.
    trains: bool = False
    #: The process makes items and does not train: a worker of another process.
    loads: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    batches: list[tuple[BatchPhase, dict[str, Any]]] = field(default_factory=list)
    phases: list[tuple[Phase, _Rows]] = field(default_factory=list)
    marks: _Rows = field(default_factory=dict)

    def place(self, context: ImportContext, process_id: int, tracks: Mapping[int, int]) -> None:
        """Add the rows."""

        def placed(rows: Mapping[str, Any]) -> dict[str, Any]:
            rest = {name: column for name, column in rows.items() if name != "tid"}
            return {**rest, "track_id": per_distinct(rows["tid"], tracks.__getitem__)}

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


def _batches(loop: Loop, functions: Functions, waits: _Rows) -> None:
    """Add waits with the items made inside them; items of a turn that was not recorded make a separate wait."""
    items = functions["item"]
    leads = next((functions[r]["tid"] for r in ("compute", *_PHASES, "body") if functions.count(r)), waits["tid"])
    main = (waits["tid"] if len(waits["tid"]) else leads)[0]
    turns = next((functions.count(r) for r in ("compute", "step", "body") if functions.count(r)), len(waits["tid"]))
    _made_by_workers(loop, _where(items, items["tid"] != main), turns)
    items = _where(items, items["tid"] == main)
    wait = _containing(items, waits)
    hulls = _hulls(_where(items, wait < 0), functions["compute"]["begin_ns"])
    if len(hulls["begin_ns"]):
        loop.facts["waits_from_items"] = str(len(hulls["begin_ns"]))
    rows = {name: np.concatenate([waits[name], hulls[name]]) for name in waits}
    order = np.argsort(rows["begin_ns"], kind="stable")
    index = np.empty(len(order), dtype=np.int64)
    index[order] = np.arange(len(order))
    # The main thread makes a batch inside its wait: from the first item to the last.
    chosen = _where(items, wait >= 0)
    by_wait = GroupBy(wait[wait >= 0])
    fetched = np.append(by_wait.values, np.arange(len(waits["tid"]), len(order)))
    worker = np.full(len(order), UNSEEN_WORKER)
    worker[fetched] = MAIN_PROCESS
    loop.batches.append((BatchPhase.WAIT, {**rows, "batch_index": index, "worker_id": worker}))
    if len(fetched):
        made = {
            "begin_ns": np.concatenate([chosen["begin_ns"][by_wait.first], hulls["begin_ns"]]),
            "end_ns": np.concatenate([chosen["end_ns"][by_wait.last], hulls["end_ns"]]),
            "batch_index": index[fetched],
            "worker_id": np.full(len(fetched), MAIN_PROCESS),
            "tid": np.full(len(fetched), main),
        }
        loop.batches.append((BatchPhase.FETCH, made))


def _made_by_workers(loop: Loop, items: _Rows, turns: int) -> None:
    """Add the batches made by threads other than the loop's, or by a process without a loop.

    If the loop's turns divide the items into k each, and every thread made a multiple of k, a batch is k items; else a
    batch ends where its thread pauses. The file does not show which turn got which batch.
    """
    threads = [_outermost(_where(items, items["tid"] == tid)) for tid in np.unique(items["tid"]).tolist()]
    counts = [len(thread["begin_ns"]) for thread in threads]
    count = sum(counts)
    size = count // turns if turns and count % turns == 0 else 0
    if size and any(of_thread % size for of_thread in counts):
        size = 0
    for worker, thread in enumerate(threads):
        if size:
            by_batch = np.arange(len(thread["end_ns"])) // size
            made = {"begin_ns": thread["begin_ns"][::size], "end_ns": GroupBy(by_batch).max(thread["end_ns"])}
        else:
            made = _hulls(thread, np.empty(0, dtype=np.int64))
        made_count = len(made["begin_ns"])
        unknown, maker = np.full(made_count, -1), np.full(made_count, worker)
        rows = {**made, "batch_index": unknown, "worker_id": maker, "tid": np.full(made_count, thread["tid"][0])}
        loop.batches.append((BatchPhase.FETCH, rows))
    if count:
        loop.facts["batches_of_workers"] = f"{size} items each" if size else "by pauses between items"


def _where(rows: _Rows, chosen: Bools) -> _Rows:
    return {name: column[chosen] for name, column in rows.items()}


def _containing(rows: _Rows, outer: _Rows) -> Int64:
    """Return the place of the last row of ``outer`` that began before each row, if it contains it; else -1."""
    at = np.searchsorted(outer["begin_ns"], rows["begin_ns"], side="right") - 1
    is_inside = at >= 0
    is_inside[is_inside] = rows["end_ns"][is_inside] <= outer["end_ns"][at[is_inside]]
    return np.where(is_inside, at, -1)


def _hulls(items: _Rows, computes: Int64) -> _Rows:
    """Return one row per run of items with no long pause and no begin of a compute between them."""
    turn = np.searchsorted(computes, items["begin_ns"])
    first, end = stretches(items["begin_ns"], items["end_ns"], _ITEM_GAP_NS, turn[1:] != turn[:-1])
    return {"begin_ns": items["begin_ns"][first], "end_ns": end, "tid": items["tid"][first]}


def _outermost(rows: _Rows) -> _Rows:
    """Return the rows that no earlier row of the same thread contains."""
    if not len(rows["begin_ns"]):
        return rows
    latest = np.append(np.int64(-1), np.maximum.accumulate(rows["end_ns"])[:-1])
    return _where(rows, rows["end_ns"] > latest)


def _marks(loop: Loop, bodies: _Rows, computes: _Rows) -> None:
    """Add the ends of steps: where the body of a turn ends; without one, where its compute ends."""
    lone = _where(computes, _containing(computes, bodies) < 0)
    ends = np.concatenate([bodies["end_ns"], lone["end_ns"]])
    tids = np.concatenate([bodies["tid"], lone["tid"]])
    order = np.argsort(ends, kind="stable")
    if len(ends):
        loop.marks = {"begin_ns": ends[order], "end_ns": ends[order], "tid": tids[order]}
        loop.facts["steps_from"] = "turns of the loop"
