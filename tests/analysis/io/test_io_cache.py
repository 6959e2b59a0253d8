"""io_cache, io_reuse: stack distances against a simulated LRU, laws of caches, samples."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from builders import MS, TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from stashtrace.analysis.io import cache as module
from stashtrace.analysis.io.cache import collect_accesses, io_cache, io_reuse, previous_uses, stack_distances
from stashtrace.analysis.io.files import io_patterns, io_sizes
from stashtrace.analysis.io.staging import io_staging
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

KB = 1000


def reads_of(paths: list[int], size: int | dict[int, int] = KB, hosts: tuple[str, ...] = ("node00",)) -> Trace:
    """Whole files read one after the other, the ranks in turn."""
    build = TraceBuilder(hosts)
    for number, path in enumerate(paths):
        length = size if isinstance(size, int) else size[path]
        build.rank(number % len(hosts)).io(
            number * MS, (number + 1) * MS, op=IoOp.PREAD, path=f"/d/{path}", offset_bytes=0, result_bytes=length
        )
    return build.trace()


def simulated_lru(uses: list[int], size: dict[int, int], cache: int) -> list[bool]:
    held: OrderedDict[int, int] = OrderedDict()
    hits = []
    for item in uses:
        hits.append(item in held)
        held[item] = size[item]
        held.move_to_end(item)
        while sum(held.values()) > cache:
            held.popitem(last=False)
    return hits


USES = st.lists(st.integers(0, 8), min_size=1, max_size=60)
SIZES = st.lists(st.integers(1, 50), min_size=9, max_size=9)


@settings(deadline=None)
@given(uses=USES, sizes=SIZES, cache=st.integers(1, 300))
def test_distances_are_a_simulated_lru(uses: list[int], sizes: list[int], cache: int) -> None:
    size = dict(enumerate(sizes))
    item = np.array(uses, dtype=np.int64)
    found = stack_distances(previous_uses(item), np.array(sizes, dtype=np.int64)[item])
    assert ((found >= 0) & (found <= cache)).tolist() == simulated_lru(uses, size, cache)


@settings(deadline=None, max_examples=50)
@given(uses=USES, sizes=SIZES, cache=st.integers(1, 300))
def test_hit_ratio_is_a_simulated_lru(uses: list[int], sizes: list[int], cache: int) -> None:
    size = dict(enumerate(sizes))
    row = next(io_cache(reads_of(uses, size), cache_size=cache).rows())
    moved = np.array([size[item] for item in uses])
    assert row["lru_hit_ratio"] == pytest.approx(moved[simulated_lru(uses, size, cache)].sum() / moved.sum())
    assert row["read_bytes"] == moved.sum()


@settings(deadline=None, max_examples=50)
@given(uses=USES, sizes=SIZES)
def test_more_cache_never_serves_less(uses: list[int], sizes: list[int]) -> None:
    table = io_cache(reads_of(uses, dict(enumerate(sizes))))
    for name in ("lru_hit_ratio", "kept_hit_ratio", "shuffled_lru_hit_ratio"):
        assert (np.diff(table[name]) >= -1e-12).all()
        assert (table[name] <= table["reread_ratio"] + 1e-12).all()
        assert table[name][-1] == pytest.approx(table["reread_ratio"][-1])


def test_a_scan_that_is_too_long_defeats_lru() -> None:
    table = io_cache(reads_of([0, 1, 2, 3] * 3), cache_size=3 * KB)
    row = next(table.rows())
    assert row["reread_ratio"] == pytest.approx(2 / 3)
    assert row["lru_hit_ratio"] == 0
    assert row["kept_hit_ratio"] == pytest.approx(2 / 3 * 3 / 4)
    assert (row["data_bytes"], row["cached_ratio"]) == (4 * KB, 0.75)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.8, 0.9])
def test_laws_of_shuffled_epochs(share: float) -> None:
    random, files, epochs = np.random.default_rng(7), 4000, 4
    uses = np.concatenate([random.permutation(files) for _ in range(epochs)])
    row = next(io_cache(_wide(uses, files), cache_size=round(share * files * KB)).rows())
    again = (epochs - 1) / epochs
    assert row["lru_hit_ratio"] == pytest.approx(again * (share + (1 - share) * np.log(1 - share)), abs=0.015)
    assert row["shuffled_lru_hit_ratio"] == pytest.approx(row["lru_hit_ratio"], abs=0.015)
    assert row["kept_hit_ratio"] == pytest.approx(again * share, abs=1e-3)


def _wide(uses: np.ndarray, files: int) -> Trace:
    """As reads_of, for many."""
    trace = reads_of(list(range(files)))
    code = trace.io["path_code"][uses]
    begin = np.arange(len(uses), dtype=np.int64) * MS
    rows = trace.io.take(np.zeros(len(uses), dtype=np.int64))
    columns = {name: rows[name] for name in TABLES["io"].names}
    return trace.replace(io=Table(TABLES["io"], {**columns, "path_code": code, "begin_ns": begin, "end_ns": begin + 1}))


def test_small_reads_one_after_the_other_are_no_reuse() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for epoch in range(2):
        for number in range(8):
            at = (epoch * 8 + number) * MS
            rank.io(at, at + MS, op=IoOp.PREAD, offset_bytes=number * 512, result_bytes=512)
    trace = build.trace()
    rows = list(io_reuse(trace, block=1024).rows())
    assert [(r["low_bytes"], r["accesses_count"]) for r in rows] == [(-1, 4), (2049, 4)]
    assert rows[1]["high_bytes"] == 4096
    assert next(io_cache(trace, block=1024, cache_size=4095).rows())["lru_hit_ratio"] == 0
    assert next(io_cache(trace, block=1024, cache_size=4096).rows())["lru_hit_ratio"] == 0.5
    assert next(io_cache(trace, block="file", cache_size=4096).rows())["lru_hit_ratio"] == 0.5


def test_long_read_touches_many_blocks() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS, op=IoOp.PREAD, offset_bytes=100, result_bytes=2000)
    found = collect_accesses(build.trace(), 1000)
    assert found.moved_bytes.tolist() == [900, 1000, 100]
    assert found.low_bytes.tolist() == [100, 0, 0]


def test_hosts_have_a_cache_each() -> None:
    table = io_cache(reads_of([0, 0, 1, 0], hosts=("a", "b")), cache_size=10 * KB)
    assert dict(zip(table["host"].tolist(), table["reread_ratio"].tolist(), strict=True)) == {"a": 0.0, "b": 0.5}


def test_sample_of_blocks_gives_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    random, files = np.random.default_rng(3), 6000
    trace = _wide(np.concatenate([random.permutation(files) for _ in range(3)]), files)
    exact = io_cache(trace)
    monkeypatch.setattr(module, "collect_accesses", lambda *given, **more: collect_accesses(*given, **more, limit=5000))
    sampled = io_cache(trace)
    assert sampled["sampled_ratio"].tolist() == [0.25] * 20
    assert sampled["data_bytes"][0] == pytest.approx(exact["data_bytes"][0], rel=0.1)
    for share in (0.25, 0.5, 0.75):
        found = [np.interp(share, t["cached_ratio"], t["lru_hit_ratio"]) for t in (exact, sampled)]
        assert found[1] == pytest.approx(found[0], abs=0.03)


def test_only_files_below_a_directory() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for number, path in enumerate(["/d/a", "/dd/b", "/d/a"]):
        rank.io(number * MS, (number + 1) * MS, path=path, offset_bytes=0, result_bytes=KB)
    trace = build.trace()
    assert io_reuse(trace, under="/d/")["high_bytes"].tolist() == [-1, 1024]
    assert io_cache(trace, under="/d", cache_size=KB)["lru_hit_ratio"].tolist() == [0.5]
    assert io_patterns(trace, under="/d")["path"].tolist() == ["/d/a"]
    assert io_patterns(trace, under="/d")["access1_count"].tolist() == [2]
    assert io_staging(trace, under="/dd")["path"].tolist() == ["/dd/b"]
    for analysis in (io_cache, io_patterns, io_sizes, io_staging):
        with pytest.raises(MissingDataError, match="below /nowhere"):
            analysis(trace, under="/nowhere")


def test_bad_input() -> None:
    trace = reads_of([0])
    for options in ({"block": "much"}, {"block": "0"}, {"cache_size": "-3G"}):
        with pytest.raises(UsageError):
            io_cache(trace, **options)  # type: ignore[arg-type]
    build = TraceBuilder()
    build.rank(0).io(0, MS)
    with pytest.raises(MissingDataError):
        io_cache(build.trace())


def test_the_most_important_are_kept() -> None:
    """Of three files read in two epochs the cache keeps those that weigh most, whenever they came."""
    trace = reads_of([0, 1, 2, 2, 1, 0], {0: 10, 1: 20, 2: 30})
    weights = {"/d/2": 5.0, "/d/0": 3.0, "/nowhere": 9.0}
    for cache, served in ((29, 0), (30, 30), (39, 30), (40, 40), (59, 40), (60, 60)):
        row = next(io_cache(trace, cache_size=cache, importance=weights).rows())
        assert row["important_hit_ratio"] == pytest.approx(served / 120)
    assert np.isnan(io_cache(trace)["important_hit_ratio"]).all()


def test_importance_from_a_file(tmp_path: Path) -> None:
    trace = reads_of([0, 1, 0, 1], {0: 10, 1: 20})
    (tmp_path / "weights").write_text("# path,weight\n/d/1,2\n\n/d/a,b,1\n/d/0,-1e3\n")
    row = next(io_cache(trace, cache_size=20, importance=tmp_path / "weights").rows())
    assert row["important_hit_ratio"] == pytest.approx(20 / 60)


@pytest.mark.parametrize("text", [None, "", "/d/1\n", "/d/1,much\n", "/d/1,nan\n"])
def test_a_file_of_importance_that_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "weights").write_text(text)
    with pytest.raises(UsageError, match="weights"):
        io_cache(reads_of([0, 1]), importance=tmp_path / "weights")


def test_importance_of_other_files() -> None:
    with pytest.raises(MissingDataError, match="none of the samples"):
        io_cache(reads_of([0, 1]), importance={"/nowhere": 1.0})
