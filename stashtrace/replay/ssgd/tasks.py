"""The iterations of all workers as one graph of tasks, its replay, and the variants: which tasks overlap.

    worker 0  read | copy | F1 F2 ... FL | BL ... B2 B1 |          | update | F1 ...
    worker 1  read | copy | F1 F2 ... FL | BL ... B2 B1 |          | update | F1 ...
    link                                     [L] [3 2]  [1]                            a message needs all workers

Each worker has a reader, a copy engine and a device; there is one link. Each does one task at a time, in the order of
the iterations. A worker reads at most one batch ahead.

S. Shi, Q. Wang, X. Chu, B. Li, A DAG model of synchronous stochastic gradient descent in distributed deep learning
(arXiv 1805.03812). The presets state which tasks each framework overlapped in the versions of that study (2018). They
are given from memory of the paper, not from a second reading, and do not describe later versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace._native import graph as native
from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.errors import UsageError
from stashtrace.replay.ssgd.workload import Workload, rounded


@dataclass(frozen=True, slots=True)
class Variant:
    """Tasks that overlap with the computation of an iteration."""

    name: str
    #: The next batch is read meanwhile.
    prefetches: bool
    #: The next batch is also copied to the device meanwhile.
    copies_ahead: bool
    #: Gradients of a layer are aggregated while earlier layers still make theirs (wait-free back-propagation);
    #: otherwise after the backward pass.
    layer_wise: bool

    def __post_init__(self) -> None:
        if self.copies_ahead and not self.prefetches:
            raise UsageError(f"{self.name}: a batch that is not read ahead cannot be copied ahead")

    @property
    def overlaps(self) -> str:
        """Names of the tasks that overlap with computation."""
        parts = ["reading"] * self.prefetches + ["copies"] * self.copies_ahead + ["communication"] * self.layer_wise
        return ", ".join(parts) or "nothing"


NAIVE = Variant("naive", prefetches=False, copies_ahead=False, layer_wise=False)
PREFETCH = Variant("prefetch", prefetches=True, copies_ahead=True, layer_wise=False)
WAIT_FREE = Variant("wfbp", prefetches=True, copies_ahead=True, layer_wise=True)
VARIANTS = (NAIVE, PREFETCH, WAIT_FREE)
PRESETS = (
    Variant("caffe-mpi", prefetches=True, copies_ahead=True, layer_wise=True),
    Variant("cntk", prefetches=True, copies_ahead=False, layer_wise=False),
    Variant("mxnet", prefetches=True, copies_ahead=False, layer_wise=True),
    Variant("tensorflow", prefetches=True, copies_ahead=False, layer_wise=True),
)


#: This many iterations after the first, the length of an iteration no longer changes.
_SETTLED = 4
#: The replay counts nanoseconds in 64 bits; this is 73 years.
_LONGEST_NS = float(1 << 61)


@dataclass(frozen=True, slots=True)
class Replay:
    """When each task of each iteration ran; arrays are by iteration, then by worker, then by layer or message."""

    #: int array (iterations, workers, 2); Begin and end.
    reads_ns: Int64
    copies_ns: Int64
    #: int array (iterations, workers, layers, 2); Layers in the order of the forward pass.
    forward_ns: Int64
    backward_ns: Int64
    #: int array (iterations, messages, 2); In the order of sending.
    messages_ns: Int64
    updates_ns: Int64

    @property
    def ends_ns(self) -> Int64:
        """When all workers have ended each iteration."""
        ends: Int64 = self.updates_ns[:, :, 1].max(axis=1)
        return ends

    @property
    def iteration_ns(self) -> int:
        """Length of the last iteration: that of all later ones, once some iterations have passed."""
        ends = self.ends_ns
        return int(ends[-1] - ends[-2]) if len(ends) > 1 else int(ends[0])


def replay(
    workload: Workload,
    variant: Variant,
    *,
    workers: int,
    last_layers: Sequence[int] | Int64 = (),
    message_ns: Any = (),
    iterations: int = _SETTLED + 1,
    slowness: Any = None,
) -> Replay:
    """Run the graph.

    ``last_layers``: the layer of each message whose gradients are ready last, in the order of sending; none for one
    worker. ``message_ns``: time of each message. ``slowness``: by worker, its computation time relative to the
    workload; 1 by default. Raises UsageError if there is no worker or iteration, messages do not fit the layers, or all
    of it takes longer than 73 years.
    """
    if workers < 1 or iterations < 1:
        raise UsageError(f"cannot replay {iterations} iterations of {workers} workers", hint="give one of each or more")
    layers = np.asarray(last_layers, dtype=np.int64)
    times = np.asarray(message_ns, dtype=np.float64)
    factors = np.ones(workers) if slowness is None else np.asarray(slowness, dtype=np.float64)
    if layers.shape != times.shape or layers.ndim != 1 or factors.shape != (workers,):
        raise UsageError("messages, their layers and times, or workers and their slowness differ in number")
    if len(layers) and not ((layers >= 0) & (layers < len(workload))).all():
        raise UsageError(f"a message names a layer outside of the {len(workload)} layers")
    whole = (workload.io_ns + workload.copy_ns + workload.alone_ns) * max(factors.max(), 1.0) + times.sum()
    if not iterations * whole < _LONGEST_NS:
        raise UsageError(
            f"{iterations} iterations of {whole / 1e9:.3g} s are too long to replay",
            hint="times of layers without a unit are microseconds, and so is --latency",
        )
    tasks = _Tasks(iterations, workers, len(workload), len(layers))
    duration = _durations(tasks, workload, times, factors)
    source, target = _edges(tasks, variant, layers)
    order = np.zeros(tasks.count, dtype=np.int64)
    plan = native.Plan(source, target, order, np.zeros(len(source), dtype=np.int8))
    begin, _ = plan.replay(order, duration, np.zeros(len(source), dtype=np.int64))
    spans = np.stack([begin, begin + duration], axis=1)
    columns = (tasks.read, tasks.copy, tasks.forward, tasks.backward, tasks.message, tasks.update)
    return Replay(*(spans[nodes] for nodes in columns))


class _Tasks:
    """Numbers of the tasks: arrays by iteration, then worker, then layer (forward order) or message."""

    def __init__(self, iterations: int, workers: int, layers: int, messages: int) -> None:
        self.count = 0
        self.read = self._more(iterations, workers)
        self.copy = self._more(iterations, workers)
        self.forward = self._more(iterations, workers, layers)
        self.backward = self._more(iterations, workers, layers)
        self.message = self._more(iterations, messages)
        self.update = self._more(iterations, workers)

    def _more(self, *shape: int) -> Int64:
        size = int(np.prod(shape))
        first, self.count = self.count, self.count + size
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)


def _durations(tasks: _Tasks, workload: Workload, message_ns: Floats, slowness: Floats) -> Int64:
    out = np.zeros(tasks.count, dtype=np.int64)
    out[tasks.read], out[tasks.copy] = rounded(workload.io_ns), rounded(workload.copy_ns)
    out[tasks.forward] = rounded(slowness[:, None] * workload.forward_ns)
    out[tasks.backward] = rounded(slowness[:, None] * workload.backward_ns)
    out[tasks.update] = rounded(slowness * workload.update_ns)
    out[tasks.message] = rounded(message_ns)
    return out


def _edges(tasks: _Tasks, variant: Variant, last_layers: Int64) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    pairs: list[tuple[Int64, Int64]] = []

    def after(source: Int64, target: Int64) -> None:
        source, target = np.broadcast_arrays(source, target)
        pairs.append((source.ravel(), target.ravel()))

    after(tasks.read, tasks.copy)
    after(tasks.copy, tasks.forward[:, :, 0])
    after(tasks.forward[:, :, :-1], tasks.forward[:, :, 1:])
    after(tasks.forward[:, :, -1], tasks.backward[:, :, -1])
    after(tasks.backward[:, :, 1:], tasks.backward[:, :, :-1])
    after(tasks.backward[:, :, 0], tasks.update)
    after(tasks.update[:-1], tasks.forward[1:, :, 0])
    # Batches are read when needed or one ahead, each after the one before.
    begins = tasks.copy if variant.copies_ahead else tasks.read
    after(begins[:-1], tasks.read[1:])
    if variant.prefetches:
        after(tasks.update[:-2], tasks.read[2:])
    else:
        after(tasks.update[:-1], tasks.read[1:])
    if not variant.copies_ahead:
        after(tasks.update[:-1], tasks.copy[1:])
    if len(last_layers):
        made = np.zeros(len(last_layers), dtype=np.int64) if not variant.layer_wise else last_layers
        after(tasks.backward[:, :, made], tasks.message[:, None, :])
        after(tasks.message[:, :-1], tasks.message[:, 1:])
        after(tasks.message[:, -1:], tasks.update)
    source, target = (np.concatenate([pair[i] for pair in pairs]).astype(np.int32) for i in (0, 1))
    return source, target
