"""Whose the batches of a loader are: the steps in which they are waited for, and how many workers make them."""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase
from stashtrace.schema.table import Table

SERVES = ("training", *QUIET_KINDS)


def workers_count(worker_ids: Int64) -> int:
    """Return how many workers a loader had at a time, by the ids of the workers that made its batches; 0 without any.

    DataLoader numbers the workers of every iterator from 0, so those that start anew with each epoch count once.
    """
    return len(np.unique(worker_ids[worker_ids >= 0]))


def waits_of_steps(batches: Table, steps: Table) -> Table:
    """Return the waits for batches of the processes that make these steps; those of a forked child are its own."""
    waits = (batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0)
    return batches.take(waits & np.isin(batches["process_id"], steps["process_id"]))


def serves(waits: Table, kind_of_step: np.ndarray[tuple[int], np.dtype[np.str_]]) -> tuple[Int64, Int64]:
    """Return loaders, and the kind of step in which most batches of each were waited for, as a place in ``SERVES``."""
    code = int64(np.select([kind_of_step == kind for kind in QUIET_KINDS], range(1, len(SERVES)), 0))
    given = waits["batch_index"] >= 0  # the end of an iterator lies in what comes after it
    loaders = GroupBy(waits["loader_id"][given])
    votes = GroupBy.cells((loaders.number, code[given]), (len(loaders), len(SERVES))).sizes
    return loaders.values, int64(votes.argmax(axis=1)) if len(loaders) else int64([])
