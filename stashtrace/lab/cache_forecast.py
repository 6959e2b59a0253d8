"""From the measured rates of a run to a forecast: the inputs and where they come from, what is missing, the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stashtrace.analysis.io import loader_rates as names
from stashtrace.analysis.io.policy import POLICY
from stashtrace.calibration.file import Calibration
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab import cache_model
from stashtrace.lab.plot_helpers import check_plot_file, save_figure
from stashtrace.report import blocks as b
from stashtrace.report.blocks import Block
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema as _schema
from stashtrace.schema.stall_kinds import KIND_COLOURS
from stashtrace.schema.table import Table
from stashtrace.summary.picture_style import FAINT, new_figure, plain_axes
from stashtrace.text.prose import count_noun
from stashtrace.text.units import bytes_text, duration_text, percent_text

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
    col.real("batches_per_s", "of all ranks"),
    col.real("reader_bytes_per_s", "storage that gives each reader this keeps fetch within 5 % of a step; inf: none"),
    col.real("storage_bytes_per_s", "and all readers of a host together this"),
    col.word("limited_by", "compute, prep or fetch"),
)

#: A data set is known whole when its files were read this often.
_WHOLE_EPOCHS = 1.3
#: A part of the bytes read by threads that make no batches from which on the read calls of those that do say little.
_ELSEWHERE_RATIO = 0.1
#: A part of preparing spent waiting for a CPU that is worth a sentence.
_QUEUED_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a forecast."""

    #: The slowest rank, with the storage and the page cache of its host.
    job: cache_model.LoadingJob
    #: The same with every input one standard error better or worse.
    better: cache_model.LoadingJob
    worse: cache_model.LoadingJob
    #: Of the recorded run.
    measured_step_ns: float
    measured_hit_ratio: float
    #: All pages of files that were read, 0 if not known.
    dataset_bytes: int
    #: What was not measured, and what that means for the forecast.
    notes: tuple[str, ...]
    #: Whether the rate of storage is a measurement.
    storage_known: bool


class _Quantities:
    """The quantities of ``loader_rates``, by rank; those of the run have rank -1. What was not measured is 0."""

    def __init__(self, rates: Table) -> None:
        self._rows = {(row["rank"], row["quantity"]): row for row in rates.rows()}
        self.ranks: list[int] = sorted({rank for rank, quantity in self._rows if quantity == names.COMPUTE})

    def has(self, rank: int, quantity: str) -> bool:
        return (rank, quantity) in self._rows

    def mean(self, rank: int, quantity: str, column: str = "mean") -> float:
        row = self._rows.get((rank, quantity))
        return float(row[column]) if row else 0.0

    def error(self, rank: int, quantity: str) -> float:
        return self.mean(rank, quantity, "error")

    def slowest_rank(self) -> int:
        """Return the rank whose loader or compute takes longest: a step ends when it has its batch."""

        def slowness(rank: int) -> float:
            workers = max(self.mean(rank, names.WORKERS), 1)
            return max(self.mean(rank, names.COMPUTE), self.mean(rank, names.PREP) / workers)

        return max(self.ranks, key=slowness)


@dataclass(frozen=True, slots=True)
class _Storage:
    """Bytes per second of the page cache, of one reader of storage and of all; what is assumed of them."""

    cached: float
    reader: float
    all_readers: float
    is_known: bool
    notes: tuple[str, ...]


def inputs_of(rates: Table, calibration: Calibration | None = None, *, dataset_bytes: int | None = None) -> Inputs:
    """Choose the slowest rank and say what was not measured.

    ``rates``: from ``loader_rates``. ``calibration``: its disk, where the run did not read from storage.
    ``dataset_bytes``: size of the data set, where the run saw only a part of it. Raises MissingDataError if the run
    shows no read of a batch, as through a memory map, or if other threads read much of it.
    """
    measured = _Quantities(rates)
    _refuse_unseen_reads(measured)
    rank = measured.slowest_rank()
    storage = _storage_of(measured, rank, calibration)
    job = cache_model.LoadingJob(
        measured.mean(rank, names.COMPUTE),
        measured.mean(rank, names.PREP),
        measured.mean(rank, names.BATCH),
        int(measured.mean(rank, names.WORKERS)),
        int(measured.mean(-1, names.RANKS)),
        storage.cached,
        storage.reader,
        storage.all_readers,
    )
    return Inputs(
        job=job,
        better=_moved(job, measured, rank, -1),
        worse=_moved(job, measured, rank, 1),
        measured_step_ns=max(measured.mean(r, names.STEP) for r in measured.ranks),
        measured_hit_ratio=measured.mean(-1, names.HIT),
        dataset_bytes=dataset_bytes if dataset_bytes is not None else int(measured.mean(-1, names.DATASET)),
        notes=(*storage.notes, *_notes_on_data(measured, rank, dataset_bytes)),
        storage_known=storage.is_known,
    )


def _refuse_unseen_reads(measured: _Quantities) -> None:
    """Raises MissingDataError if the run does not show what the makers of batches read."""
    if not any(measured.has(rank, names.BATCH) for rank in measured.ranks):
        raise MissingDataError(
            "the run shows no read call of the threads that make batches",
            hint="data read through a memory map or by other threads cannot be forecast; see `analyze loader_rates`",
        )
    elsewhere = measured.mean(-1, names.ELSEWHERE)
    if elsewhere > _ELSEWHERE_RATIO:
        raise MissingDataError(
            f"{100 * elsewhere:.0f} % of the bytes are read by other threads than those that make batches",
            hint="reads by other threads (the pool of Arrow, a reader of the script) cannot be forecast; see"
            " `analyze loader_rates` for what was read, `analyze io_cache` for what a cache would have answered",
        )


def _storage_of(measured: _Quantities, rank: int, calibration: Calibration | None) -> _Storage:
    """Return the rates of storage: measured, else from a calibration, else those of the page cache."""
    cached, reader, storage = (measured.mean(-1, q) for q in (names.CACHED, names.READER, names.STORAGE))
    notes: list[str] = []
    if not cached:
        cached = math.inf
        notes.append("page cache: not measured, since no file came from it; its reads count as free, a lower bound")
    is_known = reader > 0
    if not is_known:
        size = measured.mean(rank, names.BATCH) / max(measured.mean(rank, names.RANGES), 1.0)
        expected = calibration.expected("random_read", [size]) if calibration else None
        if calibration is not None and expected is not None:
            reader = size / float(expected.time_ns[0]) * 1e9
            notes.append(
                f"storage: from the calibration ({calibration.date[:10]}), one reader; the run read everything from"
                " the page cache"
            )
            is_known = True
        else:
            reader = cached
            notes.append(
                "storage: not measured, since every file came from the page cache; rows below 100 % are left"
                " out (give --calibration, or record an epoch with a cold cache)"
            )
    if is_known and not storage:
        storage = reader
        if max(int(measured.mean(rank, names.WORKERS)), 1) * int(measured.mean(-1, names.RANKS)) > 1:
            notes.append(
                "storage: two readers were rarely in it at once; all readers together get the rate of one,"
                " so steps with little cached are an upper bound"
            )
    elif storage > 1.3 * reader:
        readers = measured.mean(-1, names.READERS)
        notes.append(
            f"storage: more readers got more ({readers:.1f} at once, mean); its limit was not reached, and"
            " more readers than that are an extrapolation"
        )
    return _Storage(cached, reader, max(storage, reader) if is_known else cached, is_known, tuple(notes))


def _notes_on_data(measured: _Quantities, rank: int, dataset_bytes: int | None) -> list[str]:
    """Say what the run does not show of the data set, and where its loader differs from the model's."""
    notes: list[str] = []
    streams = int(measured.mean(-1, names.UNLOCATED))
    if dataset_bytes is None and streams:
        notes.append(
            f"data set: not measured, since {count_noun(streams, 'file')} {'are' if streams > 1 else 'is'} read through"
            " streams that stay open, without known offsets; --cache-size needs --dataset-size"
        )
    elif dataset_bytes is None and measured.mean(-1, names.EPOCHS) < _WHOLE_EPOCHS:
        notes.append(
            "data set: the run reads little of it twice, so it may be larger than seen; --cache-size is"
            " compared with what was read (give --dataset-size)"
        )
    again = measured.mean(-1, names.EPOCHS) / max(measured.mean(-1, names.PASSES), 1.0)
    if again >= POLICY.amplified_times:
        notes.append(
            f"hits: each byte is read {again:.3g} times in an iteration of the loader, and the forecast takes"
            " each to be read once: a cache answers more (`analyze io_cache` counts what it would have"
            " answered in this run, `analyze io_advice` says what to change)"
        )
    prep, queued = measured.mean(rank, names.PREP), measured.mean(rank, names.QUEUED)
    if prep and queued > _QUEUED_RATIO * prep:
        notes.append(
            f"prep: {100 * queued / prep:.0f} % of it is waiting for a CPU; with more workers than free CPUs a"
            " batch takes longer than forecast"
        )
    return notes


def _moved(job: cache_model.LoadingJob, measured: _Quantities, rank: int, sign: int) -> cache_model.LoadingJob:
    """Return the job with every input one standard error better (-1) or worse (1)."""

    def rate(value: float, quantity: str) -> float:
        return max(value - sign * measured.error(-1, quantity), 0.1 * value)

    return replace(
        job,
        compute_ns=max(job.compute_ns + sign * measured.error(rank, names.COMPUTE), 0.0),
        prep_ns=max(job.prep_ns + sign * measured.error(rank, names.PREP), 0.0),
        batch_bytes=max(job.batch_bytes + sign * measured.error(rank, names.BATCH), 0.0),
        cached_bytes_per_s=rate(job.cached_bytes_per_s, names.CACHED),
        reader_bytes_per_s=rate(job.reader_bytes_per_s, names.READER),
        storage_bytes_per_s=rate(job.storage_bytes_per_s, names.READER),
    )


def cache_forecast(inputs: Inputs, cached: Sequence[float], policy: str) -> Table:
    """Forecast step time and stalls at these cached shares. ``policy``: ``lru`` or ``minio``."""
    share = np.asarray(cached, dtype=np.float64)
    if not inputs.storage_known:
        share = share[share == 1.0]
        if not len(share):
            raise UsageError("without a rate of storage nothing below 100 % can be forecast", hint=inputs.notes[0])
    hits = cache_model.hit_ratio(share, policy)
    job = inputs.job
    steps, better, worse = (cache_model.predict(j, hits) for j in (job, inputs.better, inputs.worse))
    needs = [cache_model.storage_without_fetch_stall(job, float(h)) for h in hits]
    times_ns: dict[str, Any] = {
        "step_ns": steps.step_ns,
        "low_ns": np.minimum(better.step_ns, steps.step_ns),
        "high_ns": np.maximum(worse.step_ns, steps.step_ns),
        "compute_ns": steps.compute_ns,
        "prep_ns": steps.prep_ns,
        "fetch_ns": steps.fetch_ns,
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


#: Names and order of the inputs on the page; the rest of the quantities speak through the notes.
_TITLES = {
    "step_ns": "step",
    "compute_ns": "compute of a step",
    "prep_ns": "prep of a batch, one worker",
    "batch_bytes": "bytes of a batch",
    "files_per_batch": "files of a batch",
    "ranges_per_batch": "ranges of files of a batch",
    "workers_count": "workers of a rank",
    "ranks_count": "ranks on a host",
    "cached_bytes_per_s": "page cache, one reader",
    "reader_bytes_per_s": "storage, one reader",
    "storage_bytes_per_s": "storage, all readers",
    "dataset_bytes": "data set, as far as read",
    "hit_ratio": "answered by the cache",
}
#: Quantities that are not means of samples, and what they are.
_SUMS = {
    "workers_count": "count of",
    "ranks_count": "count of",
    "storage_bytes_per_s": "all bytes by all time of",
    "dataset_bytes": "sum of",
    "hit_ratio": "share of",
}
_TABLE_HEAD = (
    *("cached", "hits", "step", "at least", "at most", "prep", "fetch", "batches/s"),
    *("reader needs", "host needs", "limit"),
)
#: Rates and sizes below this error are said to be right.
_GOOD_RATIO = 0.1


def answers(inputs: Inputs) -> dict[str, Any]:
    """Numbers behind the sentences, for JSON."""
    job = inputs.job
    need = cache_model.storage_without_fetch_stall(job, 0.0)
    return {
        "workers_without_prep_stall_count": cache_model.workers_without_prep_stall(job) if job.compute_ns > 0 else None,
        "storage_without_fetch_stall_bytes_per_s": need.total_bytes_per_s,
        "replayed_step_ns": replayed_ns(inputs),
        "measured_step_ns": inputs.measured_step_ns,
        "measured_hit_ratio": inputs.measured_hit_ratio,
        "dataset_bytes": inputs.dataset_bytes,
    }


def replayed_ns(inputs: Inputs) -> float:
    """The step of the recorded run by the model, at the hit ratio that it had."""
    return float(cache_model.predict(inputs.job, inputs.measured_hit_ratio).step_ns[0])


def forecast_blocks(inputs: Inputs, rates: Table, table: Table, policy: str) -> list[Block | None]:
    """Return a forecast to show: inputs with origin and spread, the table, the three answers, the doubts."""
    what = "never evicts (MinIO)" if policy == cache_model.MINIO else "evicts the least recently used"
    return [
        b.Table(
            "measured in the run (the forecast is made from means, and from rates of all bytes by all time):",
            (),
            _input_rows(rates),
            (0, 2),
        ),
        b.Table(
            f"forecast, for a cache that {what} and an order that is new in each epoch:",
            _TABLE_HEAD,
            [_cells(row) for row in table.rows()],
            (),
            indent="",
            note="needs: rate of storage for one reader, and for all of a host, that keeps fetch within"
            f" {100 * cache_model.SLACK_RATIO:.0f} % of a step",
        ),
        b.Listing(_answers_in_words(inputs)),
        b.Listing(inputs.notes, "not measured, or doubtful"),
    ]


def _input_rows(rates: Table) -> list[tuple[str, ...]]:
    order = list(_TITLES)
    rows = [row for row in rates.rows() if row["quantity"] in _TITLES]
    rows.sort(key=lambda row: (order.index(row["quantity"]), row["rank"]))
    several = len({row["rank"] for row in rows if row["rank"] >= 0}) > 1
    cells: list[tuple[str, ...]] = []
    for row in rows:
        quantity = row["quantity"]
        title = _TITLES[quantity] + (f", rank {row['rank']}" if several and row["rank"] >= 0 else "")
        mean, median, low, high = (_text(quantity, row[name]) for name in ("mean", "median", "low", "high"))
        cells.append((title, mean, _statistic(row)))
        if not mean == low == high:
            cells.append(("", median, f"median, quartiles {low} and {high}"))
    return cells


def _statistic(row: dict[str, Any]) -> str:
    """Statistic that a row holds, and its source."""
    if row["quantity"] in _SUMS:
        return f"{_SUMS[row['quantity']]} {row['origin']}"
    kind = "all bytes by all time" if row["quantity"].endswith("_bytes_per_s") else "mean"
    return f"{kind} of {row['samples_count']:,} {row['origin']}"


def _text(quantity: str, value: float) -> str:
    if quantity.endswith("_ns"):
        return duration_text(value)
    if quantity.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if quantity.endswith("_bytes"):
        return bytes_text(value)
    if quantity.endswith("_ratio"):
        return percent_text(value)
    return f"{value:g}" if value == round(value) else f"{value:.1f}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    times = ("step_ns", "low_ns", "high_ns", "prep_ns", "fetch_ns")
    return (
        *(percent_text(row[name]) for name in ("cached_ratio", "hit_ratio")),
        *(duration_text(row[name]) for name in times),
        f"{row['batches_per_s']:.1f}",
        *(_need(row[name]) for name in ("reader_bytes_per_s", "storage_bytes_per_s")),
        row["limited_by"],
    )


def _need(rate: float) -> str:
    return "-" if rate == 0 else "never" if math.isinf(rate) else f"{bytes_text(rate)}/s"


def _answers_in_words(inputs: Inputs) -> list[str]:
    job = inputs.job
    warm = cache_model.predict(job, 1.0)
    lines = []
    if job.compute_ns > 0:
        enough = cache_model.workers_without_prep_stall(job)
        now = f"{job.workers_count} now" if job.workers_count else "the step thread loads now"
        if warm.prep_ns[0] <= cache_model.SLACK_RATIO * warm.step_ns[0]:
            lines.append(
                f"prep stall: none with all data cached; {count_noun(enough, 'worker')} a rank would be enough ({now})"
            )
        else:
            lines.append(
                f"prep stall: {count_noun(enough, 'worker')} a rank remove it ({now}), given as many free CPUs"
            )
    need = cache_model.storage_without_fetch_stall(job, 0.0)
    if math.isinf(need.total_bytes_per_s):
        lines.append("fetch stall: no storage removes it while nothing is cached; workers are too few")
    else:
        lines.append(
            f"fetch stall: with nothing cached, storage that gives one reader {bytes_text(need.reader_bytes_per_s)}/s"
            f" and all of a host {bytes_text(need.total_bytes_per_s)}/s removes it"
        )
    replayed, measured = replayed_ns(inputs), inputs.measured_step_ns
    error = (replayed - measured) / measured if measured else 0.0
    doubt = "" if abs(error) <= _GOOD_RATIO else ", so the forecast is doubtful"
    lines.append(
        f"check: the step of this run, {duration_text(measured)} with {percent_text(inputs.measured_hit_ratio)}"
        f" answered by the cache, is {duration_text(replayed)} by this model ({100 * error:+.1f} %{doubt})"
    )
    return lines


# The picture of a forecast: a step against the cached share, as compute, prep and fetch. matplotlib is optional.

_KINDS = ("compute", "prep", "fetch")


def plot_forecast(inputs: Inputs, table: Table, policy: str, path: str) -> None:
    """Draw a forecast into a file; the suffix chooses the format."""
    check_plot_file(path)
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    share = 100 * table["cached_ratio"]
    parts = {name: table[f"{name}_ns"] / 1e6 for name in _KINDS}
    if len(share) > 1:
        colours = [KIND_COLOURS[name] for name in _KINDS]
        axes.stackplot(share, *parts.values(), labels=list(parts), colors=colours, alpha=0.75, lw=0)
        low, high = table["low_ns"] / 1e6, table["high_ns"] / 1e6
        axes.fill_between(share, low, high, color=FAINT, alpha=0.3, lw=0, label="at least, at most")
        # A cache of which share would have answered like that of the run
        at = np.interp(inputs.measured_hit_ratio, table["hit_ratio"], share)
        step = inputs.measured_step_ns / 1e6
        axes.plot(at, step, "D", ms=6, color="#D55E00", label="the run, by its hits")
    else:
        below = np.zeros(len(share))
        for name, values in parts.items():
            axes.bar(share, values, bottom=below, width=4, color=KIND_COLOURS[name], label=name)
            below = below + values
    axes.set_xlim(-2, 102)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"cached share of the data set, % ({policy})")
    axes.set_ylabel("step, ms")
    # Above the axes: the areas below the step leave no room.
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, columnspacing=1.2)
    plain_axes(axes)
    save_figure(figure, path)
