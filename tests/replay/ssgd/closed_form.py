"""Iteration times in closed form; the replay of the DAG gives the same where all workers are equal.

SGD on one device         t_io + t_copy + t_f + t_b + t_u
naive                     t_io + t_copy + t_f + t_b + t_c + t_u
reading ahead             max(t_copy + t_f + t_b + t_c + t_u, t_io)
reading, copying ahead    max(t_f + t_b + t_c + t_u, t_io + t_copy)
wait-free                 t_c becomes the part of it that the backward pass does not hide
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.analysis.intervals import Floats
from stashtrace.replay.communication.overlap import schedule
from stashtrace.replay.ssgd.tasks import Variant
from stashtrace.replay.ssgd.workload import Workload


def iteration_ns(workload: Workload, variant: Variant, ready_ns: Any = (), message_ns: Any = ()) -> float:
    """Return the time of an iteration among many that follow each other.

    Parameters
    ----------
    workload : Workload
    variant : Variant
    ready_ns, message_ns : sequence of float
        When each message can be sent since the begin of the backward pass, and how long it takes; none for one device.
    """
    ready, messages = np.asarray(ready_ns, dtype=np.float64), np.asarray(message_ns, dtype=np.float64)
    busy = workload.alone_ns + exposed_ns(workload, variant, ready, messages)
    if not variant.prefetches:
        return workload.io_ns + workload.copy_ns + busy
    if not variant.copies_ahead:
        return max(workload.copy_ns + busy, workload.io_ns)
    return max(busy, workload.io_ns + workload.copy_ns)


def exposed_ns(workload: Workload, variant: Variant, ready_ns: Floats, message_ns: Floats) -> float:
    if not variant.layer_wise:
        return float(message_ns.sum())
    backward = float(workload.backward_ns.sum())
    return schedule(ready_ns, message_ns, backward_end_ns=backward).exposed_ns
