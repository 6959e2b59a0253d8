"""Whose the batches of a loader are, how many workers make them, and the samples of each step that loaders report."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.intervals import Floats, Int64, int64, window_at
from stashtrace.analysis.steps.steps import steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS, UPDATE_KINDS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_with_key

SERVES = ("training", *QUIET_KINDS)


def workers_count(worker_ids: Int64) -> int:
    """Return how many workers a loader had at a time, by the ids of the workers that made its batches; 0 without any.

    DataLoader numbers the workers of every iterator from 0, so those that start again with each epoch count once.
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


#: Metadata key of an iterator, before its ``loader_id``; the same in ``probes/torch/dataloader_worker``.
FACT = "dataloader "
_KEY, _VALUE = re.compile(rf"{FACT}([0-9a-f]{{16}})"), re.compile(r"(\d{1,15}) (\d{1,15}) (\d{1,15})( iterable)?")


@dataclass(frozen=True, slots=True)
class LoaderSamples:
    """Samples that an iterator reported: of a batch, of an epoch of its process, of the data set; 0 if unknown."""

    batch: int = 0
    epoch: int = 0
    every: int = 0
    #: Each worker makes the batches of its own part of an IterableDataset.
    is_iterable: bool = field(default=False, compare=False)


def recorded_samples(trace: Trace) -> dict[int, LoaderSamples]:
    """Return the samples that the iterators of a run reported, by ``loader_id``; unreadable reports are left out."""
    samples = {}
    for row in facts_with_key(trace, _KEY.fullmatch).rows():
        key = _KEY.fullmatch(trace.text(row["key_code"]))
        value = _VALUE.fullmatch(trace.text(row["value_code"])) if key else None
        if key and value:
            batch, epoch, every = map(int, value.groups()[:3])
            samples[int(key[1], 16)] = LoaderSamples(batch, epoch, every, is_iterable=value[4] is not None)
    return samples


def step_samples(steps: Table, waits: Table, by_loader: dict[int, LoaderSamples]) -> tuple[Floats, LoaderSamples]:
    """Samples of each step of one rank, and what the loader that it waited for most often says.

    ``steps``: ``steps`` of a rank. ``waits``: batch waits of the rank that brought a batch. The samples are as many as
    the steps, in their order; empty if a loader that fed one of them does not say.
    """
    order = np.argsort(steps["begin_ns"], kind="stable")
    begin, end = steps["begin_ns"][order], steps["end_ns"][order]
    at = window_at(waits["begin_ns"], begin, end)
    at, loaders = at[at >= 0], GroupBy(waits["loader_id"][at >= 0])
    batch = loaders.map(lambda loader: by_loader.get(loader, LoaderSamples()).batch)
    if not len(batch) or not batch.all():
        return np.empty(0), LoaderSamples()
    samples = np.empty(len(begin))
    samples[order] = GroupBy.numbered(at, len(begin)).sum(batch)
    return samples, by_loader[int(loaders.values[loaders.sizes.argmax()])]


@dataclass(frozen=True, slots=True)
class JobSamples:
    """Samples of a job; 0 for what its loaders do not say."""

    #: Of one rank and step, all its micro-batches together.
    step_samples: int = 0
    #: Of all ranks, until the loader of the training steps begins again.
    epoch_samples: int = 0


def job_samples(trace: Trace) -> JobSamples:
    """Find the samples of the training steps of a run.

    A rank's step has the batches that it waited for inside, its samples are the median over steps and ranks. Nothing is
    said where a loader gives samples one by one, or ranks differ.
    """
    known = recorded_samples(trace)
    every_step = steps(trace)
    train = every_step.take(np.isin(every_step["kind"], UPDATE_KINDS))
    waits = waits_of_steps(trace.batches, train)
    sizes, epoch, every, batch = [], 0, 0, 0
    ranks = np.unique(train["rank"]).tolist()
    for rank in ranks:
        size, main = _of_rank(train.take(train["rank"] == rank), waits.take(waits["rank"] == rank), known)
        sizes.append(size)
        epoch = epoch + main.epoch if main.epoch and (epoch or rank == ranks[0]) else 0
        every, batch = main.every, main.batch
    if not sizes or not all(sizes):
        return JobSamples()
    # Samplers repeat some samples or leave some out, so that all ranks have as many, and whole batches.
    epoch = every if epoch and abs(epoch - every) < len(sizes) * batch else epoch
    return JobSamples(sizes[0], epoch) if len(set(sizes)) == 1 else JobSamples()


def _of_rank(steps: Table, waits: Table, by_loader: dict[int, LoaderSamples]) -> tuple[int, LoaderSamples]:
    """Samples of a step of one rank, and what the loader that it waited for most often says."""
    samples, main = step_samples(steps, waits, by_loader)
    middle = float(np.median(samples)) if len(samples) else 0.0
    return (int(middle) if middle.is_integer() else 0), main
