"""loader_rates and the forecast made from them: a job drawn by hand, whose every figure is known."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.cache_forecast import cache_forecast, inputs_of
from stashtrace.analysis.loader_rates import loader_rates
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.models.alpha_beta import fit_alpha_beta
from stashtrace.models.calibration import Calibration, Link, Points

MB = 1_000_000
STEPS = 30
#: A batch: two files of 1 MB. From storage 10 ms each (100 MB/s), from the page cache 1 ms (1 GB/s); then prep.
COLD, WARM, PREP, COMPUTE = 10 * MS, 1 * MS, 20 * MS, 15 * MS


def job(cold: list[bool], *, ranks: int = 1, workers: int = 1, paths: int = 10_000, read: bool = True) -> Trace:
    """Input-bound: each worker makes its batches without a pause; ``cold`` repeats over the files."""
    build = TraceBuilder()
    for number in range(ranks):
        rank = build.rank(number)
        free = dict.fromkeys(range(workers), 0)
        before = file = 0
        for step in range(STEPS):
            worker = rank.worker(step % workers)
            begin = at = free[step % workers]
            for _ in range(2):
                path = f"/data/{(file * ranks + number) % paths}"
                if read:
                    length = COLD if cold[file % len(cold)] else WARM
                    worker.io(at, at + length, path=path, blocked=cold[file % len(cold)], result_bytes=MB)
                    at += length
                file += 1
            at += PREP
            worker.fetch(step, begin, at)
            free[step % workers] = at
            rank.batch_wait(step, before, max(at, before + 1), worker=step % workers)
            ready = max(at, before + 1)
            rank.phase("forward", ready, ready + 5 * MS).phase("backward", ready + 5 * MS, ready + 14 * MS)
            rank.phase("optimizer", ready + 14 * MS, ready + COMPUTE)
            before = ready + COMPUTE
    return build.trace()


def means(table: Table) -> dict[tuple[int, str], float]:
    return {(row["rank"], row["quantity"]): row["mean"] for row in table.rows()}


def test_every_rate_is_found() -> None:
    found = means(loader_rates(job([True, False])))
    assert found[0, "compute_ns"] == pytest.approx(COMPUTE)
    assert found[0, "prep_ns"] == pytest.approx(PREP)
    assert found[0, "batch_bytes"] == 2 * MB
    assert found[0, "files_per_batch"] == 2
    assert found[0, "workers_count"] == 1
    assert found[-1, "ranks_count"] == 1
    assert found[-1, "reader_bytes_per_s"] == pytest.approx(100 * MB)
    assert found[-1, "cached_bytes_per_s"] == pytest.approx(1000 * MB)
    assert found[-1, "hit_ratio"] == 0.5
    assert found[-1, "epochs_count"] == 1.0
    assert (-1, "storage_bytes_per_s") not in found  # one reader is never two


def test_readers_at_once_are_told_from_one_alone() -> None:
    found = means(loader_rates(job([True], ranks=2)))
    assert found[-1, "ranks_count"] == 2
    assert found[-1, "readers_count"] == pytest.approx(2, abs=0.05)
    assert found[-1, "storage_bytes_per_s"] == pytest.approx(200 * MB, rel=0.02)


def test_later_calls_on_a_file_that_was_read_ahead_belong_to_storage() -> None:
    build = TraceBuilder()
    rank, before = build.rank(0), 0
    for step in range(STEPS):
        begin = step * 40 * MS
        worker = rank.worker(0)
        worker.io(begin, begin + 8 * MS, path=f"/data/{step}", blocked=True, result_bytes=MB)
        worker.io(begin + 8 * MS, begin + 10 * MS, path=f"/data/{step}", result_bytes=MB)
        worker.fetch(step, begin, begin + 40 * MS)
        end = begin + 40 * MS
        rank.batch_wait(step, before, end, worker=0)
        rank.phase("forward", end, end + MS).phase("backward", end + MS, end + 2 * MS)
        rank.phase("optimizer", end + 2 * MS, end + 3 * MS)
        before = end + 3 * MS
    found = means(loader_rates(build.trace()))
    assert found[-1, "hit_ratio"] == 0
    assert found[-1, "reader_bytes_per_s"] == pytest.approx(200 * MB)
    assert (-1, "cached_bytes_per_s") not in found


def test_forecast_by_hand() -> None:
    inputs = inputs_of(loader_rates(job([True, False])))
    rows = list(cache_forecast(inputs, [0.0, 0.5, 1.0], "minio").rows())
    assert [row["step_ns"] for row in rows] == pytest.approx([40 * MS, 31 * MS, 22 * MS])
    assert [row["fetch_ns"] for row in rows] == pytest.approx([18 * MS, 9 * MS, 0], abs=1)
    assert [row["prep_ns"] for row in rows] == pytest.approx([7 * MS] * 3)
    assert [row["simulated_ns"] for row in rows] == pytest.approx([row["step_ns"] for row in rows], rel=0.05)
    for row in rows:
        assert row["low_ns"] <= row["step_ns"] <= row["high_ns"]
        assert row["compute_ns"] + row["prep_ns"] + row["fetch_ns"] == pytest.approx(row["step_ns"], abs=2)
    lru = next(iter(cache_forecast(inputs, [0.5], "lru").rows()))
    assert lru["hit_ratio"] == pytest.approx(0.153, abs=1e-3)
    assert lru["step_ns"] == pytest.approx(40 * MS - 0.1534 * 18 * MS, rel=1e-3)


def test_the_recorded_step_comes_out_again() -> None:
    inputs = inputs_of(loader_rates(job([True, False])))
    row = next(iter(cache_forecast(inputs, [inputs.measured_hit_ratio], "minio").rows()))
    assert row["step_ns"] == pytest.approx(inputs.measured_step_ns, rel=0.02)


def test_part_of_a_data_set_is_said_to_be_one() -> None:
    once = inputs_of(loader_rates(job([True, False])))
    assert any(note.startswith("data set:") for note in once.notes)
    told = inputs_of(loader_rates(job([True, False])), dataset_bytes=10**12)
    assert told.dataset_bytes == 10**12
    assert not any(note.startswith("data set:") for note in told.notes)
    twice = inputs_of(loader_rates(job([True, False], paths=20)))
    assert twice.dataset_bytes == 20 * MB
    assert not any(note.startswith("data set:") for note in twice.notes)


def test_a_warm_run_forecasts_nothing_below_all_cached() -> None:
    inputs = inputs_of(loader_rates(job([False])))
    assert not inputs.storage_known
    assert any(note.startswith("storage: not measured") for note in inputs.notes)
    assert [row["cached_ratio"] for row in cache_forecast(inputs, [0.0, 0.5, 1.0], "lru").rows()] == [1.0]
    with pytest.raises(UsageError, match="without a rate of storage"):
        cache_forecast(inputs, [0.5], "lru")


def test_a_cold_run_says_that_the_page_cache_counts_as_free() -> None:
    inputs = inputs_of(loader_rates(job([True])))
    assert any(note.startswith("page cache: not measured") for note in inputs.notes)
    assert next(iter(cache_forecast(inputs, [1.0], "lru").rows()))["step_ns"] == pytest.approx(PREP)


def test_a_calibrated_disk_stands_in_for_storage() -> None:
    sizes = (4096, 65536, MB, 4 * MB)
    times = tuple(1e6 + 5.0 * size for size in sizes)
    points = Points(sizes, times, times, times, (9,) * 4)
    link = Link("disk", "posix", "random_read", 1, fit_alpha_beta(sizes, times, max_pieces=1), points)
    disk = Calibration("2026-01-01", "stashtrace calibrate --disk .", {}, {}, (link,))
    inputs = inputs_of(loader_rates(job([False])), disk)
    assert inputs.storage_known
    assert any("from the calibration" in note for note in inputs.notes)
    # 1 ms and 5 ns a byte: a file of 1 MB takes 6 ms.
    assert inputs.job.reader_bytes_per_s == pytest.approx(MB / 6e-3, rel=0.01)


def test_without_read_calls_there_is_no_forecast() -> None:
    rates = loader_rates(job([True], read=False))
    assert means(rates)[0, "prep_ns"] == pytest.approx(PREP)
    with pytest.raises(MissingDataError, match="no read call"):
        inputs_of(rates)


def test_without_batches_there_are_no_rates() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(STEPS):
        at = step * 10 * MS
        rank.phase("forward", at, at + MS).phase("backward", at + MS, at + 2 * MS)
        rank.phase("optimizer", at + 2 * MS, at + 9 * MS)
    with pytest.raises(MissingDataError, match="no batch was made"):
        loader_rates(build.trace())
