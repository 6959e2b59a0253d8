"""loader_rates and the forecast made from them: a job drawn by hand, whose every figure is known."""

from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.io.loader_rates import loader_rates
from stashtrace.calibration.file import Calibration, Link, Points
from stashtrace.calibration.fit_link import fit_alpha_beta
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab.cache_forecast import cache_forecast, forecast_blocks, inputs_of
from stashtrace.report.blocks import text_lines
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

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
                    worker.io(
                        at, at + length, path=path, blocked=cold[file % len(cold)], result_bytes=MB, offset_bytes=0
                    )
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


def test_readers_at_once_are_distinguished_from_one_alone() -> None:
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


CHUNK, CHUNKS = 500_000, 210


def one_large_file(epochs: int = 2, *, times: int = 1, op: IoOp = IoOp.PREAD, opens: str = "") -> Trace:
    """One HDF5 file of 105 MB; a batch reads two chunks of it, far apart, ``times`` each; every second one waits.

    ``opens``: not at all, ``once``, or in each ``batch``; reads of a stream (FREAD) have no offset.
    """
    build, before = TraceBuilder(), 0
    rank = build.rank(0)
    per_epoch = CHUNKS // 2
    for epoch in range(epochs):
        worker = rank.worker(epoch)  # workers of each epoch are new
        for number in range(per_epoch):
            begin = at = before
            if opens == "batch" or (opens == "once" and number == 0):
                worker.io(at, at, op=IoOp.FOPEN, path="/data/train.h5", result_bytes=3)
            for chunk in (number, number + per_epoch):
                for _ in range(times):
                    length = COLD if chunk >= per_epoch else WARM
                    offset = -1 if op == IoOp.FREAD else chunk * CHUNK
                    worker.io(
                        at,
                        at + length,
                        op=op,
                        path="/data/train.h5",
                        blocked=chunk >= per_epoch,
                        offset_bytes=offset,
                        result_bytes=CHUNK,
                    )
                    at += length
            at += PREP
            worker.fetch(number, begin, at, loader=epoch)
            rank.batch_wait(number, begin, at, worker=epoch, loader=epoch)
            rank.phase("forward", at, at + 5 * MS).phase("backward", at + 5 * MS, at + 14 * MS)
            rank.phase("optimizer", at + 14 * MS, at + COMPUTE)
            before = at + COMPUTE
    return build.trace()


def test_a_file_read_by_ranges_counts_by_its_bytes() -> None:
    found = means(loader_rates(one_large_file()))
    # The first steps are warm-up: what only they read is not seen in the first epoch, but in the second.
    assert found[-1, "dataset_bytes"] == CHUNK * CHUNKS
    assert found[-1, "epochs_count"] == pytest.approx(2, abs=0.1)
    assert found[-1, "passes_count"] == 2
    assert found[0, "files_per_batch"] == 1
    assert found[0, "ranges_per_batch"] == 2
    # A chunk that waits is not a reason to call the other one of its file cold.
    assert found[-1, "hit_ratio"] == pytest.approx(0.5, abs=0.01)
    assert found[-1, "cached_bytes_per_s"] == pytest.approx(CHUNK / WARM * 1e9)
    assert found[-1, "reader_bytes_per_s"] == pytest.approx(CHUNK / COLD * 1e9)
    inputs = inputs_of(loader_rates(one_large_file()))
    assert inputs.dataset_bytes == CHUNK * CHUNKS
    assert not any(note.startswith(("data set:", "hits:")) for note in inputs.notes)


def test_reading_the_same_again_in_one_iteration_is_said_to_break_the_law_of_hits() -> None:
    inputs = inputs_of(loader_rates(one_large_file(times=3)))
    assert any(note.startswith("hits: each byte is read 2.9") for note in inputs.notes)
    assert inputs.dataset_bytes == CHUNK * CHUNKS


def test_streams_that_stay_open_have_no_size() -> None:
    rates = loader_rates(one_large_file(op=IoOp.FREAD, opens="once"))
    found = means(rates)
    assert (-1, "dataset_bytes") not in found
    assert (-1, "epochs_count") not in found
    inputs = inputs_of(rates)
    assert inputs.dataset_bytes == 0
    assert any("1 file is read through streams" in note for note in inputs.notes)
    reported = inputs_of(rates, dataset_bytes=CHUNK * CHUNKS)
    assert reported.dataset_bytes == CHUNK * CHUNKS
    assert not any(note.startswith("data set:") for note in reported.notes)
    # Opened for each batch, a stream begins where the file does.
    assert means(loader_rates(one_large_file(op=IoOp.FREAD, opens="batch")))[-1, "dataset_bytes"] == 2 * CHUNK


def test_each_row_shows_one_statistic_and_names_it() -> None:
    build, before = TraceBuilder(), 0
    rank = build.rank(0)
    for step in range(STEPS):
        # Many small ranges fast, a large one slow: the mean rate lies below the lower quartile of the ranges.
        begin, worker = before, rank.worker(0)
        slow = step % 5 == 0
        at = begin + (100 * MS if slow else 4 * MS)
        worker.io(begin, at, path=f"/data/{step}", blocked=True, offset_bytes=0, result_bytes=10 * MB if slow else MB)
        worker.fetch(step, begin, at + PREP)
        rank.batch_wait(step, begin, at + PREP, worker=0)
        rank.phase("forward", at + PREP, at + PREP + MS).phase("backward", at + PREP + MS, at + PREP + 2 * MS)
        rank.phase("optimizer", at + PREP + 2 * MS, at + PREP + 3 * MS)
        before = at + PREP + 3 * MS
    rates = loader_rates(build.trace())
    row = next(row for row in rates.rows() if row["quantity"] == "reader_bytes_per_s")
    assert row["mean"] < row["low"] <= row["median"] <= row["high"]
    inputs = inputs_of(rates)
    lines = text_lines(forecast_blocks(inputs, rates, cache_forecast(inputs, [0.0], "lru"), "lru"))
    block = lines[: lines.index("")]
    at = next(i for i, line in enumerate(block) if "storage, one reader" in line)
    assert "all bytes by all time" in block[at]
    assert " to " not in block[at].split("all bytes")[0]
    assert block[at + 1].split()[:5] == ["250", "MB/s", "median,", "quartiles", "250"]
    for line in block[1:]:
        assert (
            sum(
                word in line
                for word in ("mean of", "median,", "all bytes by all time", "count of", "sum of", "share of")
            )
            == 1
        ), line


def test_forecast_by_hand() -> None:
    inputs = inputs_of(loader_rates(job([True, False])))
    rows = list(cache_forecast(inputs, [0.0, 0.5, 1.0], "minio").rows())
    assert [row["step_ns"] for row in rows] == pytest.approx([40 * MS, 31 * MS, 22 * MS])
    assert [row["fetch_ns"] for row in rows] == pytest.approx([18 * MS, 9 * MS, 0], abs=1)
    assert [row["prep_ns"] for row in rows] == pytest.approx([7 * MS] * 3)
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
    reported = inputs_of(loader_rates(job([True, False])), dataset_bytes=10**12)
    assert reported.dataset_bytes == 10**12
    assert not any(note.startswith("data set:") for note in reported.notes)
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


def test_reading_in_other_threads_is_counted_and_not_forecast() -> None:
    """Arrow reads in a pool: the thread that makes a batch only reads what says where the columns are."""
    build, before = TraceBuilder(), 0
    rank = build.rank(0)
    worker = rank.worker(0)
    pool = [worker.thread("arrow"), worker.thread("arrow")]
    for step in range(STEPS):
        begin, end = before, before + PREP
        worker.io(begin, begin + MS, op=IoOp.PREAD, path="/data/a.parquet", offset_bytes=100 * MB, result_bytes=8192)
        for number, thread in enumerate(pool):
            offset = (2 * step + number) * MB
            thread.io(
                begin + MS, begin + 5 * MS, op=IoOp.PREAD, path="/data/a.parquet", offset_bytes=offset, result_bytes=MB
            )
            thread.io(end + 1, end + 2, op=IoOp.PREAD, path="/data/other", offset_bytes=0, result_bytes=MB)
        worker.fetch(step, begin, end)
        rank.batch_wait(step, begin, end, worker=0)
        rank.phase("forward", end, end + MS).phase("backward", end + MS, end + 2 * MS)
        rank.phase("optimizer", end + 2 * MS, end + 3 * MS)
        before = end + 3 * MS
    rates = loader_rates(build.trace())
    batches = next(row["samples_count"] for row in rates.rows() if row["quantity"] == "batch_bytes")
    found = means(rates)
    pages = -(-2 * batches * MB // 4096) * 4096
    assert found[-1, "dataset_bytes"] == pytest.approx(pages + 8192, abs=4096)
    assert found[-1, "elsewhere_ratio"] == pytest.approx(2 * MB / (2 * MB + 8192))
    with pytest.raises(MissingDataError, match="100 % of the bytes are read by other threads"):
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
