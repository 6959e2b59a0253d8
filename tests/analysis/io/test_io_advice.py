"""io_staging and io_advice: knapsacks by hand and by trying all, costs, sentences with their figures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from corpus import corpus
from hypothesis import given
from hypothesis import strategies as st

from stashtrace import load
from stashtrace.analysis.io.cache import io_cache, io_reuse
from stashtrace.analysis.io.files import io_advice
from stashtrace.analysis.io.staging import choose, io_staging
from stashtrace.calibration.file import Calibration, Link, Points
from stashtrace.calibration.fit_link import Fit, Piece
from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import DataLossWarning, MissingDataError, UsageError
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.trace import Trace

MB = 1_000_000


def three_files() -> Trace:
    """small: 2 MB, blocked 20 ms; large: 100 MB, blocked 200 ms; cached: never blocked."""
    build = TraceBuilder()
    rank = build.rank(0)
    rank.io(0, 20 * MS, path="/d/small", blocked=True, offset_bytes=0, result_bytes=2 * MB)
    rank.io(20 * MS, 220 * MS, path="/d/large", blocked=True, offset_bytes=0, result_bytes=100 * MB)
    rank.io(220 * MS, 221 * MS, path="/d/cached", offset_bytes=0, result_bytes=MB)
    rank.io(221 * MS, 250 * MS, op=IoOp.WRITE, path="/out", blocked=True, offset_bytes=0, result_bytes=MB)
    rank.io(250 * MS, 270 * MS, path="/proc/self/stat", blocked=True, offset_bytes=0, result_bytes=100)
    return build.trace()


def test_most_time_by_byte_first() -> None:
    table = io_staging(three_files(), tier_size="10MB", tier_latency="1ms", tier_bandwidth="1GB/s")
    rows = {row["path"]: row for row in table.rows()}
    assert set(rows) == {"/d/small", "/d/large", "/d/cached"}
    assert [rows[p]["staged"] for p in ("/d/small", "/d/large", "/d/cached")] == [1, 0, 0]
    assert rows["/d/small"]["source_ns"] == 20 * MS
    assert rows["/d/small"]["tier_ns"] == 3 * MS
    assert rows["/d/small"]["gain_ns"] == 17 * MS
    # 8 of the 100 MB of the large file would fit: 8 % of its 99 ms.
    assert rows["/d/small"]["bound_ns"] == 17 * MS + 7_920_000
    assert rows["/d/large"]["sum_gain_ns"] == 17 * MS
    assert rows["/d/small"]["method"] == "measured, stated"


def test_without_a_tier_the_gain_is_all_that_was_waited() -> None:
    table = io_staging(three_files())
    assert int(table["gain_ns"].sum()) == 220 * MS
    assert table["staged"].tolist() == [1, 1, 0]
    assert set(table["method"].tolist()) == {"measured, no cost"}


def test_stated_source_counts_every_call() -> None:
    table = io_staging(
        three_files(), source_latency="4ms", source_bandwidth="100MB/s", tier_latency=0, tier_bandwidth="1GB/s"
    )
    costs = dict(zip(table["path"].tolist(), table["source_ns"].tolist(), strict=True))
    assert costs["/d/cached"] == 14 * MS
    assert costs["/d/large"] == 1004 * MS


def disk(alpha_ns: float, beta_ns_per_byte: float, op: str = "random_read") -> Calibration:
    piece = Piece(4096, 1 << 30, alpha_ns, 0.0, beta_ns_per_byte, 0.0, 0.0, 0.0, 5, 0)
    points = Points((4096,), (1.0,), (1.0,), (1.0,), (5,))
    return Calibration("", "", {}, {}, (Link("disk", "posix", op, 1, Fit((piece,)), points),))


def test_calibration_gives_the_tier() -> None:
    table = io_staging(three_files(), calibration=disk(1e6, 1.0))
    assert dict(zip(table["path"].tolist(), table["tier_ns"].tolist(), strict=True))["/d/small"] == 3 * MS
    assert set(table["method"].tolist()) == {"measured, calibration"}
    with pytest.raises(MissingDataError, match="no disk"):
        io_staging(three_files(), calibration=disk(1e6, 1.0, op="all_reduce"))


FILES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=9)


@given(files=FILES, room=st.integers(1, 90))
def test_choice_fits_and_lies_between_half_the_best_and_the_bound(files: list[tuple[int, int]], room: int) -> None:
    files.sort(key=lambda file: -file[1] / file[0])
    size, gain = (np.array([file[i] for file in files], dtype=np.int64) for i in (0, 1))
    staged, bound = choose(size, gain, room)
    best = max(
        sum(files[i][1] for i in chosen)
        for count in range(len(files) + 1)
        for chosen in combinations(range(len(files)), count)
        if sum(files[i][0] for i in chosen) <= room
    )
    assert size[staged].sum() <= room
    assert best / 2 <= gain[staged].sum() <= best <= bound


def test_only_files_that_the_job_wrote() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS, op=IoOp.WRITE, path="/out", offset_bytes=0, result_bytes=MB)
    with pytest.raises(MissingDataError, match="no file was only read") as caught:
        io_staging(build.trace())
    assert "what it writes is left out" in str(caught.value.hint)


def test_half_a_tier_is_refused() -> None:
    with pytest.raises(UsageError, match="half of the tier"):
        io_staging(three_files(), tier_latency="80us")
    for wrong in ({"tier_size": "huge"}, {"tier_latency": "1h", "tier_bandwidth": "1G"}):
        with pytest.raises(UsageError):
            io_staging(three_files(), **wrong)  # type: ignore[arg-type]


def reading(size: int, count: int, *, blocked: bool = False, step: int | None = None, path: str = "/d/a") -> Trace:
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(count):
        offset = number * (size if step is None else step) % (1 << 40)
        rank.io(
            number * 10 * US,
            number * 10 * US + 8 * US,
            op=IoOp.PREAD,
            path=path,
            blocked=blocked,
            offset_bytes=offset,
            result_bytes=size,
        )
    return build.trace()


def sentences(trace: Trace) -> dict[str, tuple[int, str]]:
    return {row["kind"]: (row["saving_ns"], row["advice"]) for row in io_advice(trace).rows()}


def test_small_reads_one_after_the_other() -> None:
    found = sentences(reading(4096, 2560))
    saving, text = found["small_reads"]
    assert "2,560 reads of 4.10 KB" in text
    assert text.endswith("needs 10")
    assert saving == 2550 * 8 * US
    assert set(found) == {"small_reads"}


def test_read_ahead_that_falls_behind() -> None:
    found = sentences(reading(128 << 10, 200, blocked=True))
    saving, text = found["read_ahead"]
    assert saving == 200 * 8 * US
    assert "100 % of these wait" in text
    assert set(found) == {"read_ahead"}


def test_random_reads_that_wait() -> None:
    found = sentences(reading(128 << 10, 200, blocked=True, step=-(1 << 20)))
    assert set(found) == {"random_reads"}


def test_good_reads_need_no_advice() -> None:
    assert not sentences(reading(1 << 20, 200))
    assert not sentences(reading(100, 99))


def test_many_small_files_with_empty_reads() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(600):
        at, path = number * MS, f"/d/{number % 120}"
        rank.io(at, at + 400 * US, op=IoOp.OPEN, path=path, result_bytes=3)
        rank.io(at + 400 * US, at + 500 * US, path=path, offset_bytes=0, result_bytes=80_000)
        rank.io(at + 500 * US, at + 510 * US, path=path, offset_bytes=80_000, result_bytes=0)
    found = sentences(build.trace())
    assert set(found) == {"many_opens", "small_files", "empty_reads"}
    assert "120 files of 80.0 KB" in found["small_files"][1]
    assert "50 % of 1,200 reads" in found["empty_reads"][1]
    assert found["many_opens"][0] == round(600 * 400 * US * 4 / 5)


def test_files_that_the_job_wrote_count_as_files_too() -> None:
    """A data set of 120 files of which a job that made it reads only half: 80 KB each, not 160."""
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(300):
        at, path = number * MS, f"/d/{number % 120 if number < 120 else 60 + number % 60}"
        op = IoOp.WRITE if number < 120 else IoOp.READ
        rank.io(at, at + 400 * US, op=IoOp.OPEN, path=path, result_bytes=3)
        rank.io(at + 400 * US, at + 500 * US, op=op, path=path, offset_bytes=0, result_bytes=80_000)
    found = sentences(build.trace())
    assert "120 files of 80.0 KB" in found["small_files"][1]


def small_files_of(folder: str, *, located: bool = True, op: IoOp = IoOp.READ) -> Trace:
    """300 opens of 150 files of 3 KB, most of their time in the opens."""
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(300):
        at, path = number * MS, f"{folder}/{number % 150}"
        rank.io(at, at + 400 * US, op=IoOp.OPEN, path=path, result_bytes=3)
        rank.io(at + 400 * US, at + 500 * US, op=op, path=path, offset_bytes=0 if located else -1, result_bytes=3000)
    return build.trace()


def test_pseudo_files_need_no_advice() -> None:
    assert "150 files of 3.00 KB" in sentences(small_files_of("/dev/shm/data"))["small_files"][1]
    for folder in ("/proc/7/fdinfo", "/sys/class/kfd/kfd/topology/nodes", "/dev/infiniband", "socket:"):
        assert not sentences(small_files_of(folder)), folder


def test_files_of_unknown_size_are_not_called_small() -> None:
    assert not sentences(small_files_of("/d", located=False))


def test_files_that_are_only_written_are_not_packed_for_reading() -> None:
    assert "small_files" not in sentences(small_files_of("/d", op=IoOp.WRITE))


def test_corpus_cm1_has_no_small_files() -> None:
    files = sorted(corpus("dftracer").glob("cm1-*.pfw.gz"))
    with pytest.warns(DataLossWarning):
        table = io_advice(load(files))
    assert not [row for row in table.rows() if row["kind"] == "small_files"]


GROUP, GROUPS, SAMPLES = 2_620_000, 50, 16


def columnar(
    passes: int = 2,
    batches: int = 75,
    *,
    workers: int = 1,
    loaders: bool = True,
    opens: str = "once",
    order: Callable[[int], int] = lambda sample: sample * 7 % GROUPS,
) -> Trace:
    """Samples of a parquet file of 131 MB in random order: each reads the row group that it lies in.

    ``opens``: ``once`` by each worker, in each ``pass``, or for each ``sample``. ``order``: sample -> row group.
    """
    build, path = TraceBuilder(), "/d/train.parquet"
    rank = build.rank(0)
    for worker in map(rank.worker, range(workers)):
        at = 0
        for number in range(passes):
            if opens == "pass" or (opens == "once" and number == 0):
                worker.io(at, at + US, op=IoOp.OPEN, path=path, result_bytes=3)
            for batch in range(batches):
                begin = at
                for sample in range(batch * SAMPLES, (batch + 1) * SAMPLES):
                    if opens == "sample":
                        worker.io(at, at + US, op=IoOp.OPEN, path=path, result_bytes=3)
                        at += US
                    worker.io(
                        at, at + MS, op=IoOp.PREAD, path=path, offset_bytes=order(sample) * GROUP, result_bytes=GROUP
                    )
                    at += MS
                if loaders:
                    index = batch * workers + worker.worker_id
                    worker.fetch(index, begin, at, loader=number)
    return build.trace()


def test_columns_that_are_read_for_every_sample() -> None:
    """6.29 GB of a file of 131 MB in two passes: 24 times what a pass needs."""
    found = sentences(columnar())
    saving, text = found["read_amplification"]
    assert text.startswith(
        "train.parquet: 6.29 GB are read, 131 MB without repetition; a rank reads each byte at least 24 times in a pass"
    )
    assert saving == round(2400 * MS * (1 - 1 / 24))


def test_workers_that_each_open_the_file_are_granted_a_pass_each() -> None:
    found = sentences(columnar(workers=4, opens="pass"))
    assert "each byte at least 24 times in a pass" in found["read_amplification"][1]  # 192 times, opened 8 times


def test_a_file_that_is_opened_for_each_sample_is_read_again_within_a_batch() -> None:
    found = sentences(columnar(1, 20, opens="sample", order=lambda sample: sample % 4))
    assert (
        "each byte at least 4 times in a pass" in found["read_amplification"][1]
    )  # 16 samples of 4 groups in each batch


def endless() -> Trace:
    """An iterator that goes through its shards again and again."""
    build, at = TraceBuilder(), 0
    worker = build.rank(0).worker(0)
    for batch in range(72):
        begin = at
        worker.io(at, at + US, op=IoOp.OPEN, path=f"/d/{batch % 6}.tar", result_bytes=3)
        for part in range(20):
            worker.io(at + US, at + MS, path=f"/d/{batch % 6}.tar", offset_bytes=part * MB, result_bytes=MB)
            at += MS
        worker.fetch(batch, begin, at)
    return build.trace()


@pytest.mark.parametrize(
    "make",
    [
        lambda: columnar(24, 3),  # one group is read by about one sample of a pass
        lambda: columnar(24, 3, loaders=False, opens="pass"),  # no DataLoader: as often as it was opened
        endless,
    ],
    ids=["epochs", "openings", "endless"],
)
def test_epochs_are_no_amplification(make: Callable[[], Trace]) -> None:
    assert "read_amplification" not in sentences(make())


def test_few_large_reads_are_enough() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.io(0, US, op=IoOp.OPEN, path="/d/table.feather", result_bytes=3)
    for number in range(6):
        rank.io(
            number * 100 * MS + US,
            (number + 1) * 100 * MS,
            op=IoOp.PREAD,
            path="/d/table.feather",
            offset_bytes=0,
            result_bytes=100 * MB,
        )
    saving, text = sentences(build.trace())["read_amplification"]
    assert "600 MB are read, 100 MB without repetition; a rank reads each byte at least 6 times" in text
    assert saving == pytest.approx(500 * MS, rel=0.001)


PROGRAM = (
    "/proc/self/stat",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/locale/locale-archive",
    "/usr/local/lib/python3.12/encodings/table.dat",
    "/opt/conda/lib/python3.11/site-packages/torch/version.txt",
    "/home/me/project/model.py",
    "/home/me/project/__pycache__/model.cpython-311.pyc",
    "/home/me/build/ops.so",
    "/etc/localtime",
)


def with_program() -> Trace:
    """A data set of two files of 2 MB that are read twice, and what Python reads to start."""
    build, at = TraceBuilder(), 0
    rank = build.rank(0)
    for path in (*PROGRAM, "/data/a.jpg", "/data/lib/b.h5", "/data/a.jpg", "/data/lib/b.h5"):
        size = 2 * MB if path.startswith("/data") else 5 * MB
        rank.io(at, at + 10 * MS, path=path, blocked=True, offset_bytes=0, result_bytes=size)
        at += 10 * MS
    return build.trace()


def test_a_data_set_is_not_what_python_reads_to_start() -> None:
    trace = with_program()
    assert set(io_staging(trace)["path"].tolist()) == {"/data/a.jpg", "/data/lib/b.h5"}
    assert set(io_cache(trace)["data_bytes"].tolist()) == {4 * MB}
    assert int(io_reuse(trace)["read_bytes"].sum()) == 8 * MB
    all_files = io_staging(trace, files="all")["path"].tolist()
    assert set(all_files) == {*PROGRAM[1:], "/data/a.jpg", "/data/lib/b.h5"}  # what the kernel makes up lies on no disk
    assert set(io_cache(trace, files="all")["data_bytes"].tolist()) == {4 * MB + 5 * MB * len(PROGRAM)}
    assert int(io_reuse(trace, files="all")["read_bytes"].sum()) == 8 * MB + 5 * MB * len(PROGRAM)
    for analysis in (io_staging, io_cache, io_reuse):
        with pytest.raises(UsageError, match="files cannot be 'some'"):
            analysis(trace, files="some")  # type: ignore[arg-type]


def test_a_folder_that_is_asked_for_counts_wherever_it_lies() -> None:
    build = TraceBuilder()
    folder = "/v/lib/python3.11/site-packages/sklearn/datasets/data"
    build.rank(0).io(0, MS, path=f"{folder}/iris.csv", blocked=True, offset_bytes=0, result_bytes=MB)
    trace = build.trace()
    assert io_staging(trace, under=folder)["path"].tolist() == [f"{folder}/iris.csv"]
    assert set(io_cache(trace, under=folder)["data_bytes"].tolist()) == {MB}
    for analysis in (io_staging, io_cache, io_reuse):
        with pytest.raises(MissingDataError) as caught:
            analysis(trace)
        assert "--files all" in str(caught.value.hint)


def test_options_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert write_synthetic([run, "--ranks", "2", "--steps", "5"]) == 0
    capsys.readouterr()
    assert main(["analyze", "io_patterns", run, "--per", "run", "--format", "json"]) == 0
    assert "consecutive_reads_ratio" in capsys.readouterr().out
    for name in ("io_staging", "io_cache", "io_reuse"):
        assert main(["analyze", name, run, "--files", "all", "--format", "json"]) == 0
    for name, option, value in (("stalls", "--tier-size", "1G"), ("io_advice", "--files", "all")):
        assert main(["analyze", name, run, option, value]) == 2
        assert f"has no option {option}" in capsys.readouterr().err
