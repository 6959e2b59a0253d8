"""Waits for batches that lie between two epochs of a loader, where nothing is made ahead.

epoch 1 ... batch n  | workers end | iterator made, workers start | first batch |  batch 1 ...  epoch 2
                       wait, index -1 ............................  wait, index 0
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.model.kinds import BatchPhase
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace


@dataclass(frozen=True, slots=True)
class EpochBegins:
    """What a rank waited between epochs within its counted steps.

    Attributes
    ----------
    count : int
        Iterators over a loader with workers that gave their first batch.
    wait_ns : int
        In all: iterators that ended and were made, and first batches.
    workers : int
        Of such a loader; the most that made batches.
    anew : bool
        Each iterator started workers of its own.
    """

    count: int
    wait_ns: int
    workers: int
    anew: bool


def epoch_begins(trace: Trace, rank: int, steps: Table) -> EpochBegins | None:
    """Begins of epochs within the counted steps of a rank, None if there are none or no worker makes batches."""
    own = steps.take(steps["rank"] == rank).sort_by("begin_ns")
    batches = trace.batches.take(trace.batches["rank"] == rank)
    made = batches.take((batches["phase_code"] == BatchPhase.FETCH) & (batches["worker_id"] >= 0))
    if not len(own) or not len(made):
        return None
    loaders = np.unique(made["loader_id"])
    waits = batches.take((batches["phase_code"] == BatchPhase.WAIT) & np.isin(batches["track_id"], own["track_id"]))
    at = np.searchsorted(own["begin_ns"], waits["begin_ns"], side="right") - 1
    inside = (at >= 0) & (waits["begin_ns"] < own["end_ns"][np.maximum(at, 0)])
    waits = waits.take(inside & np.isin(waits["loader_id"], loaders))
    first = waits["batch_index"] == 0
    if not first.any():
        return None
    between = first | (waits["batch_index"] < 0)
    length = int((waits["end_ns"] - waits["begin_ns"])[between].sum())
    begun = np.unique(waits["loader_id"][first])
    # A worker of a loader that keeps its workers makes batches under the numbers of several epochs.
    pairs = np.unique(np.stack([made["process_id"].astype(np.uint64), made["loader_id"].astype(np.uint64)]), axis=1)
    anew = len(loaders) > 1 and len(np.unique(pairs[0])) == pairs.shape[1]
    workers = max(len(np.unique(made["worker_id"][made["loader_id"] == loader])) for loader in begun.tolist())
    return EpochBegins(len(begun), length, workers, anew)
