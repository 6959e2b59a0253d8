"""Change times of a run: compute, launches, copies, batches, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.errors import MissingDataError
from stashtrace.replay.changes import Change, quantity_words
from stashtrace.replay.scenario import Floats, Scenario, Unknowns
from stashtrace.schema.kinds import StallKind

#: Threads of a rank that drive its steps.
_HOSTS = (Resource.STEP_THREAD, Resource.HOST)
#: Work that is multiplied: where it runs, and its kind.
_WORK = {
    "compute": ((Resource.STEP_THREAD, Resource.STREAM, Resource.DEVICE, Resource.COMPUTE_STREAM), StallKind.COMPUTE),
    "launch": ((Resource.HOST,), StallKind.LAUNCH),
    "python": (_HOSTS, StallKind.PYTHON),
    "h2d": ((Resource.STREAM,), StallKind.H2D),
    "checkpoint": (_HOSTS, StallKind.CHECKPOINT),
    "other": ((Resource.STEP_THREAD,), StallKind.OTHER),
}
#: Waits seen on devices that events timed, by the quantity that causes them.
_WAITED_FOR = {
    "h2d": (StallKind.H2D,),
    "prep": (StallKind.PREP, StallKind.HANDOFF),
    "fetch": (StallKind.FETCH,),
    "checkpoint": (StallKind.CHECKPOINT,),
}
#: Times that can be changed, in the words for a run that has none.
_NAMES = {
    "compute": "computation",
    "launch": "launch of a kernel",
    "python": "code of the loop outside the phases",
    "compile": "compilation by torch.compile",
    "objects": "collective of Python objects",
    "h2d": "copy between host and device that took time",
    "prep": "batch that took time to prepare",
    "fetch": "wait for storage while batches were made",
    "checkpoint": "checkpoint that stopped a step",
    "other": "time in which a step thread was asleep or blocked",
}
#: A batch that a waiting thread gets later than this after it was made was held back by its worker.
_HANDED_NS = 1_000_000


def has_time(run: Scenario, quantity: str) -> bool:
    """Return True if a run, given as the scenario without changes, has some of a time."""
    if _spent(run, quantity).any():
        return True
    graph = run.graph
    seen = np.isin(graph.kind, _WAITED_FOR.get(quantity, ()))
    if quantity == "launch" and len(graph.doubtful):
        seen |= graph.doubtful  # its host may have paced the device
    return bool((seen & (graph.resource == Resource.DEVICE) & (graph.work_ns > 0)).any())


def absent_times(graph: Graph) -> frozenset[str]:
    """Return the times that could be changed, but of which a run has none."""
    run = Scenario.of(graph, Unknowns())
    return frozenset(quantity for quantity in _NAMES if not has_time(run, quantity))


def require_time(graph: Graph, change: Change) -> None:
    """Check that a run has a time that is to change.

    Raises MissingDataError if it has none; the hint names the times that it has.
    """
    run = Scenario.of(graph, Unknowns())
    if has_time(run, change.quantity):
        return
    absent = absent_times(graph)
    known = [quantity for quantity in _NAMES if quantity not in absent]
    raise MissingDataError(
        f"{change}: no {_NAMES[change.quantity]} was recorded",
        hint=f"times that this run has: {', '.join(map(quantity_words, known))}" if known else "",
    )


def with_time(scenario: Scenario, change: Change) -> Scenario:
    """Multiply a time, or set its amount in a step (``prep`` and ``fetch``: in a batch)."""
    graph, work, fetch, lag = scenario.graph, scenario.work, scenario.fetch, scenario.lag
    spent = _spent(scenario, change.quantity)
    factor = _factor(scenario, change, spent)
    if change.quantity == "fetch":
        fetch = factor * fetch
    if change.quantity == "prep":
        # A batch that is handed over late waits for its worker, which is busy with the next one.
        handed = (graph.edge_kind == EdgeKind.BATCH) & (lag > _HANDED_NS)
        lag = np.where(handed, factor * lag, lag)
    work = _of_timed_devices(scenario, change, factor, work + (factor - 1) * spent)
    return replace(scenario, work=work, fetch=fetch, lag=lag)


def _spent(scenario: Scenario, quantity: str) -> Floats:
    """Return how much of a time each node took, in ns."""
    graph, work = scenario.graph, scenario.work
    on_host = np.isin(graph.resource, _HOSTS)
    if quantity == "fetch":
        return np.where(on_host & (graph.kind == StallKind.FETCH), work, scenario.fetch)
    if quantity == "prep":
        made = on_host & (graph.kind == StallKind.PREP)
        if graph.facts is not None:  # to start workers is no part of a batch
            made &= ~graph.facts.starts
        return np.where(graph.is_batch, work - scenario.fetch, np.where(made, work, 0.0))
    none = np.zeros(len(graph), dtype=bool)
    compiles, pickles = (graph.facts.compiles, graph.facts.pickles) if graph.facts is not None else (none, none)
    if quantity in ("compile", "objects"):
        return np.where(compiles if quantity == "compile" else pickles, work, 0.0)
    if quantity in ("python", "launch"):  # the loop's own code, which can be made quicker
        work = np.where(compiles | pickles, 0.0, work)
    resources, kind = _WORK[quantity]
    if quantity == "checkpoint" and (graph.edge_kind == EdgeKind.JOIN).any():
        resources = (*resources, Resource.CHECKPOINT)  # a step waited for a save by another thread
    return np.where(np.isin(graph.resource, resources) & (graph.kind == kind), work, 0.0)


def _factor(scenario: Scenario, change: Change, spent: Floats) -> float:
    """Return the factor of a time, of which each node took ``spent``."""
    if change.factor is not None:
        return change.factor
    graph, words = scenario.graph, quantity_words(change.quantity)
    counted = graph.ends_counted if graph.ends_counted.any() else np.ones(len(graph.ends), dtype=bool)
    steps = np.isin(graph.step, graph.ends_step[counted]) & ~graph.is_batch
    batches = graph.is_batch & (spent > 0)
    present = float(spent[steps].sum()) / max(int(counted.sum()), 1)
    present += float(spent[batches].mean()) if batches.any() else 0.0
    if present <= 0 and (graph.resource == Resource.DEVICE).any():
        raise MissingDataError(
            f"{change}: devices timed by events show waits, not the length of the work that causes them",
            hint=f"{words}=x0.5, or 0",
        )
    if present <= 0:
        raise MissingDataError(
            f"{change}: the steps of this run have no {words}, so it cannot be set to {change.text}",
            hint="only times that a run has can be changed",
        )
    return change.factor_from(present)


def _of_timed_devices(scenario: Scenario, change: Change, factor: float, work: Floats) -> Floats:
    """Return lengths on devices that events timed; ``luck`` 0 is the best case of what is unknown, 1 the worst.

    Where the host may have paced a device, the device may have computed or waited for launches. A wait for copies or
    batches shows only the end of work that may be longer: made faster, that work may leave no wait.
    """
    graph, luck = scenario.graph, scenario.unknowns.luck
    on_device = graph.resource == Resource.DEVICE
    if factor == 1 or not on_device.any():
        return work
    if factor > 1 and change.quantity != "compute":
        raise MissingDataError(
            f"{change} cannot be predicted for devices timed by events: they show waits, not the work that causes them",
            hint="record a few steps with `stashtrace run --kernels`",
        )
    if change.quantity in _WAITED_FOR:
        waits = on_device & np.isin(graph.kind, _WAITED_FOR[change.quantity])
        return np.where(waits, factor * scenario.work * luck, work)
    if not len(graph.doubtful):
        return work
    paced = on_device & graph.doubtful
    return np.where(paced, (factor if (luck == 0.0) == (factor < 1) else 1.0) * scenario.work, work)
