"""Samples of a step and of an epoch, as DataLoaders tell them; the guest's half is ``probes/torch_loader_facts``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.loop_tokens import UPDATE_KINDS
from stashtrace.analysis.registry import analyze
from stashtrace.model.kinds import BatchPhase
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Metadata key of an iterator, before its ``loader_id``; the same in ``probes/torch_loader_facts``.
FACT = "dataloader "


@dataclass(frozen=True, slots=True)
class JobSamples:
    """How much a job trains on; 0 for what its loaders do not say.

    Attributes
    ----------
    step_samples : int
        Of one rank and step, all its micro-batches together.
    epoch_samples : int
        Of all ranks, until the loader of the training steps begins anew.
    """

    step_samples: int = 0
    epoch_samples: int = 0


@dataclass(frozen=True, slots=True)
class _Told:
    """What one iterator said: samples of a batch, of an epoch of its process, of the data set."""

    batch: int
    epoch: int
    every: int


def job_samples(trace: Trace) -> JobSamples:
    """Samples of the training steps of a run.

    A rank's step has the batches that it waited for inside, its samples are the median over steps and ranks. Nothing is
    said where a loader gives samples one by one, or ranks differ.
    """
    told = _told(trace)
    steps = analyze(trace, "steps")
    train = steps.take(np.isin(steps["kind"], UPDATE_KINDS))
    waits = trace.batches.take((trace.batches["phase_code"] == BatchPhase.WAIT) & (trace.batches["batch_index"] >= 0))
    sizes, epoch, every, batch = [], 0, 0, 0
    ranks = np.unique(train["rank"]).tolist()
    for rank in ranks:
        size, main = _of_rank(train.take(train["rank"] == rank), waits.take(waits["rank"] == rank), told)
        sizes.append(size)
        epoch = epoch + main.epoch if main.epoch and (epoch or rank == ranks[0]) else 0
        every, batch = main.every, main.batch
    if not sizes or not all(sizes):
        return JobSamples()
    # Samplers repeat some samples or leave some out, so that all ranks have as many, and whole batches.
    epoch = every if epoch and abs(epoch - every) < len(sizes) * batch else epoch
    return JobSamples(sizes[0], epoch) if len(set(sizes)) == 1 else JobSamples()


def _told(trace: Trace) -> dict[int, _Told]:
    found = {}
    for row in trace.metadata.rows():
        key = trace.text(row["key_code"])
        if key.startswith(FACT):
            found[int(key[len(FACT) :], 16)] = _Told(*map(int, trace.text(row["value_code"]).split()))
    return found


def _of_rank(steps: Table, waits: Table, told: dict[int, _Told]) -> tuple[int, _Told]:
    """Samples of a step of one rank, and what the loader that it waited for most often says."""
    nothing = _Told(0, 0, 0)
    order = np.argsort(steps["begin_ns"], kind="stable")
    begin, end = steps["begin_ns"][order], steps["end_ns"][order]
    at = np.searchsorted(begin, waits["begin_ns"], side="right") - 1
    inside = (at >= 0) & (waits["begin_ns"] < end[np.maximum(at, 0)])
    at, loaders = at[inside], waits["loader_id"][inside]
    said = [told.get(loader, nothing) for loader in loaders.tolist()]
    if not said or not all(one.batch for one in said):
        return 0, nothing
    samples = np.bincount(at, weights=[one.batch for one in said], minlength=len(begin))
    ids, counts = np.unique(loaders, return_counts=True)
    middle = float(np.median(samples))
    return (int(middle) if middle.is_integer() else 0), told[int(ids[np.argmax(counts)])]
