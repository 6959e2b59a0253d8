"""Samples of a step and of an epoch of a whole job."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.loader_samples import LoaderSamples, step_samples, told_samples
from stashtrace.analysis.loop_tokens import UPDATE_KINDS
from stashtrace.analysis.registry import analyze
from stashtrace.model.kinds import BatchPhase
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace


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


def job_samples(trace: Trace) -> JobSamples:
    """Samples of the training steps of a run.

    A rank's step has the batches that it waited for inside, its samples are the median over steps and ranks. Nothing is
    said where a loader gives samples one by one, or ranks differ.
    """
    told = told_samples(trace)
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


def _of_rank(steps: Table, waits: Table, told: dict[int, LoaderSamples]) -> tuple[int, LoaderSamples]:
    """Samples of a step of one rank, and what the loader that it waited for most often says."""
    samples, main = step_samples(steps, waits, told)
    middle = float(np.median(samples)) if len(samples) else 0.0
    return (int(middle) if middle.is_integer() else 0), main
