"""From the measured rates of a run to a forecast: the inputs and where they come from, what is missing, the table."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stashtrace.analysis.io import loader_rates as names
from stashtrace.calibration.file import Calibration
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab.cache.cache_model import LoadingJob, hit_ratio, predict, simulate, storage_without_fetch_stall
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema as _schema
from stashtrace.schema.table import Table
from stashtrace.text import count_noun

CACHE_FORECAST = _schema(
    "cache_forecast",
    "Step time and stalls against the cached share of the data set",
    col.real("cached_ratio", "part of the data set that is in the cache"),
    col.real("hit_ratio", "part of the reads that the cache answers"),
    col.ns("step_ns", "predicted step of the slowest rank"),
    col.ns("low_ns", "with every input one standard error better"),
    col.ns("high_ns", "with every input one standard error worse"),
    col.ns("compute_ns", "a step whose batch is there"),
    col.ns("prep_ns", "what waiting for preparing adds, were all data in cache"),
    col.ns("fetch_ns", "what storage adds"),
    col.ns("simulated_ns", "step in the simulation"),
    col.real("batches_per_s", "of all ranks"),
    col.real("reader_bytes_per_s", "storage that gives each reader this keeps fetch within 5 % of a step; inf: none"),
    col.real("storage_bytes_per_s", "and all readers of a host together this"),
    col.word("limited_by", "compute, prep or fetch"),
)

#: Steps per simulated epoch and items per batch at most: enough for one percent, and a table within a second.
_SIMULATED_STEPS, _SIMULATED_ITEMS = 120, 32
#: A data set is known whole when its files were read this often.
_WHOLE_EPOCHS = 1.3
#: A part of the bytes read by threads that make no batches from which on the read calls of those that do say little.
_ELSEWHERE_RATIO = 0.1
#: A part of preparing spent waiting for a CPU that is worth a sentence.
_QUEUED_RATIO = 0.1
#: Reads of a byte in one iteration of the loader from which on more is read than the job needs.
AMPLIFIED_FROM = 2.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a forecast."""

    #: The slowest rank, with the storage and the page cache of its host.
    job: LoadingJob
    #: The same with every input one standard error better or worse.
    better: LoadingJob
    worse: LoadingJob
    #: Of the recorded run.
    measured_step_ns: float
    measured_hit_ratio: float
    #: Ranges of files that a batch reads, each of which the cache holds or not; 0 if not known.
    batch_ranges: float
    #: All pages of files that were read, 0 if not known.
    dataset_bytes: int
    #: What was not measured, and what that means for the forecast.
    notes: tuple[str, ...]
    #: Whether the rate of storage is a measurement.
    storage_known: bool


def inputs_of(rates: Table, calibration: Calibration | None = None, *, dataset_bytes: int | None = None) -> Inputs:
    """Choose the slowest rank and say what was not measured.

    ``rates``: from ``loader_rates``. ``calibration``: its disk, where the run did not read from storage.
    ``dataset_bytes``: size of the data set, where the run saw only a part of it. Raises MissingDataError if the run
    shows no read of a batch, as through a memory map, or if other threads read much of it.
    """
    rows = {(row["rank"], row["quantity"]): row for row in rates.rows()}
    ranks = sorted({rank for rank, quantity in rows if quantity == names.COMPUTE})

    def mean(rank: int, quantity: str, column: str = "mean") -> float:
        row = rows.get((rank, quantity))
        return float(row[column]) if row else 0.0

    def error(rank: int, quantity: str) -> float:
        return mean(rank, quantity, "error")

    if not any((rank, names.BATCH) in rows for rank in ranks):
        raise MissingDataError(
            "the run shows no read call of the threads that make batches",
            hint="data read through a memory map or by other threads cannot be forecast; see `analyze loader_rates`",
        )
    elsewhere = mean(-1, names.ELSEWHERE)
    if elsewhere > _ELSEWHERE_RATIO:
        raise MissingDataError(
            f"{100 * elsewhere:.0f} % of the bytes are read by other threads than those that make batches",
            hint="what runs beside the preparing (the pool of Arrow, a reader of the script) cannot be forecast; see"
            " `analyze loader_rates` for what was read, `analyze io_cache` for what a cache would have answered",
        )
    notes: list[str] = []

    # A step ends when the slowest rank has its batch: the one whose loader or compute takes longest.
    def slowness(rank: int) -> float:
        workers = max(mean(rank, names.WORKERS), 1)
        return max(mean(rank, names.COMPUTE), mean(rank, names.PREP) / workers)

    rank = max(ranks, key=slowness)
    cached, reader, storage = (mean(-1, q) for q in (names.CACHED, names.READER, names.STORAGE))
    workers, on_host = int(mean(rank, names.WORKERS)), int(mean(-1, names.RANKS))
    if not cached:
        cached = math.inf
        notes.append("page cache: not measured, since no file came from it; its reads count as free, a lower bound")
    storage_known = reader > 0
    if not storage_known:
        size = mean(rank, names.BATCH) / max(mean(rank, names.RANGES), 1.0)
        expected = calibration.expected("random_read", [size]) if calibration else None
        if calibration is not None and expected is not None:
            reader = size / float(expected.time_ns[0]) * 1e9
            notes.append(
                f"storage: from the calibration ({calibration.date[:10]}), one reader; the run read everything from"
                " the page cache"
            )
            storage_known = True
        else:
            reader = cached
            notes.append(
                "storage: not measured, since every file came from the page cache; rows below 100 % are left"
                " out (give --calibration, or record an epoch with a cold cache)"
            )
    if storage_known and not storage:
        storage = reader
        if max(workers, 1) * on_host > 1:
            notes.append(
                "storage: hardly two readers were in it at once; all readers together get the rate of one,"
                " so steps with little cached are an upper bound"
            )
    elif storage > 1.3 * reader:
        readers = mean(-1, names.READERS)
        notes.append(
            f"storage: more readers got more ({readers:.1f} at once, mean); its limit was not reached, and"
            " more readers than that are an extrapolation"
        )
    storage = max(storage, reader) if storage_known else cached
    streams = int(mean(-1, names.UNLOCATED))
    if dataset_bytes is None and streams:
        notes.append(
            f"data set: not measured, since {count_noun(streams, 'file')} {'are' if streams > 1 else 'is'} read through"
            " streams that stay open, without known offsets; --cache-size needs --dataset-size"
        )
    elif dataset_bytes is None and mean(-1, names.EPOCHS) < _WHOLE_EPOCHS:
        notes.append(
            "data set: the run reads little of it twice, so it may be larger than seen; --cache-size is"
            " compared with what was read (give --dataset-size)"
        )
    again = mean(-1, names.EPOCHS) / max(mean(-1, names.PASSES), 1.0)
    if again >= AMPLIFIED_FROM:
        notes.append(
            f"hits: each byte is read {again:.3g} times in an iteration of the loader, and the forecast takes"
            " each to be read once: a cache answers more (`analyze io_cache` counts what it would have"
            " answered in this run, `analyze io_advice` says what to change)"
        )
    prep, queued = mean(rank, names.PREP), mean(rank, names.QUEUED)
    if prep and queued > _QUEUED_RATIO * prep:
        notes.append(
            f"prep: {100 * queued / prep:.0f} % of it is waiting for a CPU; with more workers than free CPUs a"
            " batch takes longer than forecast"
        )
    job = LoadingJob(
        mean(rank, names.COMPUTE), prep, mean(rank, names.BATCH), workers, on_host, cached, reader, storage
    )

    def moved(sign: int) -> LoadingJob:
        """The job with every input one standard error better (-1) or worse (1)."""

        def rate(value: float, quantity: str) -> float:
            return max(value - sign * error(-1, quantity), 0.1 * value)

        return replace(
            job,
            compute_ns=max(job.compute_ns + sign * error(rank, names.COMPUTE), 0.0),
            prep_ns=max(prep + sign * error(rank, names.PREP), 0.0),
            batch_bytes=max(job.batch_bytes + sign * error(rank, names.BATCH), 0.0),
            cached_bytes_per_s=rate(cached, names.CACHED),
            reader_bytes_per_s=rate(reader, names.READER),
            storage_bytes_per_s=rate(storage, names.READER),
        )

    return Inputs(
        job=job,
        better=moved(-1),
        worse=moved(1),
        measured_step_ns=max(mean(r, names.STEP) for r in ranks),
        measured_hit_ratio=mean(-1, names.HIT),
        batch_ranges=mean(rank, names.RANGES),
        dataset_bytes=dataset_bytes if dataset_bytes is not None else int(mean(-1, names.DATASET)),
        notes=tuple(notes),
        storage_known=storage_known,
    )


def cache_forecast(inputs: Inputs, cached: Sequence[float], policy: str, *, seed: int = 0) -> Table:
    """Forecast step time and stalls at these cached shares.

    ``inputs``: from :func:`inputs_of`. ``cached``: parts of the data set that the cache holds, 0 to 1. ``policy``:
    ``lru`` or ``minio``.

    Columns
    -------
    cached_ratio, hit_ratio, step_ns, low_ns, high_ns, compute_ns, prep_ns, fetch_ns, simulated_ns, batches_per_s,
    reader_bytes_per_s, storage_bytes_per_s, limited_by
    """
    share = np.asarray(cached, dtype=np.float64)
    if not inputs.storage_known:
        share = share[share == 1.0]
        if not len(share):
            raise UsageError("without a rate of storage nothing below 100 % can be forecast", hint=inputs.notes[0])
    hits = hit_ratio(share, policy)
    job = inputs.job
    steps, better, worse = (predict(j, hits) for j in (job, inputs.better, inputs.worse))
    items = int(min(max(round(inputs.batch_ranges), 1), _SIMULATED_ITEMS))
    played = [
        simulate(job, float(x), policy, batch_items=items, steps=_SIMULATED_STEPS, seed=seed).step_ns for x in share
    ]
    needs = [storage_without_fetch_stall(job, float(h)) for h in hits]
    times_ns: dict[str, Any] = {
        "step_ns": steps.step_ns,
        "low_ns": np.minimum(better.step_ns, steps.step_ns),
        "high_ns": np.maximum(worse.step_ns, steps.step_ns),
        "compute_ns": steps.compute_ns,
        "prep_ns": steps.prep_ns,
        "fetch_ns": steps.fetch_ns,
        "simulated_ns": played,
    }
    return Table(
        CACHE_FORECAST,
        {
            "cached_ratio": share,
            "hit_ratio": hits,
            **{name: np.rint(values).astype(np.int64) for name, values in times_ns.items()},
            "batches_per_s": job.ranks_count * 1e9 / steps.step_ns,
            "reader_bytes_per_s": np.array([need.reader_bytes_per_s for need in needs]),
            "storage_bytes_per_s": np.array([need.total_bytes_per_s for need in needs]),
            "limited_by": np.array(steps.limits(), dtype=str),
        },
    )
