"""The critical path and late ranks on the timeline, by the real trace processor: rows are slices, turns arrows."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trace_processor
from analysis.graph.test_path import job, late_text
from builders import MS, TraceBuilder, trace_from_text
from trace_processor import TraceProcessor, exported

from stashtrace.analysis.registry import analyze
from stashtrace.timeline import step_tracks

pytestmark = pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")


def line(processor: TraceProcessor, track: str) -> list[tuple[str, int, int]]:
    return processor.rows(
        "select slice.name, ts, dur from slice join track on track_id = track.id "
        f"where track.name = '{track}' order by ts"
    )


def arrows(processor: TraceProcessor) -> list[tuple[str, str, int]]:
    """Tracks of both ends of each arrow of the overlay, and when the second begins."""
    return processor.rows(
        "select a.name, b.name, target.ts from flow join slice source on slice_out = source.id "
        "join slice target on slice_in = target.id join track a on source.track_id = a.id "
        "join track b on target.track_id = b.id where a.name glob '*critical*' order by target.ts"
    )


def test_the_strip_is_the_table_and_the_lines_divide_it(tmp_path: Path) -> None:
    trace = late_text()
    table = analyze(trace, "critical_path")
    processor = exported(trace, tmp_path / "t.pftrace")
    strip = line(processor, "critical path")
    assert [row[1:] for row in strip] == list(zip(table["begin_ns"].tolist(), table["held_ns"].tolist(), strict=True))
    assert [row[0] for row in strip[:4]] == [
        "rank 1 forward (compute)",
        "rank 1 backward (compute)",
        "all_reduce 0",
        "rank 1 optimizer (compute)",
    ]
    lines = line(processor, "transfers · critical")
    assert lines == [row for row in strip if row[0] == "all_reduce 0"]
    for rank in (0, 1):
        lines += line(processor, f"rank {rank:03d} · critical")
    assert sorted(lines, key=lambda row: row[1]) == strip
    assert processor.one("select count() from track where name = 'critical path' and parent_id is null") == 1


def test_arrows_lead_to_where_the_path_goes_on(tmp_path: Path) -> None:
    trace = late_text()
    table = analyze(trace, "critical_path")
    names = {-1: "transfers · critical", 0: "rank 000 · critical", 1: "rank 001 · critical"}
    expected = [
        (names[a], names[b], begin)
        for a, b, begin in zip(
            table["rank"][:-1].tolist(), table["rank"][1:].tolist(), table["begin_ns"][1:].tolist(), strict=True
        )
        if a != b
    ]
    assert len(expected) == 6
    assert arrows(exported(trace, tmp_path / "t.pftrace")) == expected


def test_an_ambiguous_stretch_names_its_rival(tmp_path: Path) -> None:
    processor = exported(job(100_000, error_ns=200_000), tmp_path / "t.pftrace")
    found = processor.rows(
        "select distinct extract_arg(arg_set_id, 'debug.ambiguous'), extract_arg(arg_set_id, 'debug.rival_rank'), "
        "extract_arg(arg_set_id, 'debug.rival_kind'), extract_arg(arg_set_id, 'debug.rival_slack_ns') from slice "
        "where name = 'rank 1 forward (compute)'"
    )
    assert found == [(1, 0, "compute", 100_000)]


def test_cut_by_rank_and_step(tmp_path: Path) -> None:
    trace = late_text()
    one = exported(trace, tmp_path / "ranks.pftrace", ranks=[0])
    assert len(line(one, "critical path")) == len(analyze(trace, "critical_path"))
    assert line(one, "rank 001 · critical") == []
    assert {(a, b) for a, b, _ in arrows(one)} == {("transfers · critical", "rank 000 · critical")}
    step = exported(trace, tmp_path / "steps.pftrace", steps=(1, 2))
    assert [(begin, length) for _, begin, length in line(step, "critical path")] == [
        (8 * MS, MS),
        (9 * MS, 4 * MS),
        (13 * MS, 2 * MS),
        (15 * MS, MS),
    ]


def test_a_graph_too_large_for_a_time_line_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = late_text()
    monkeypatch.setattr(step_tracks, "MOST_ROWS", len(trace.phases) + len(trace.collectives) - 1)
    with caplog.at_level(logging.INFO, logger="stashtrace"):
        processor = exported(trace, tmp_path / "t.pftrace")
    assert processor.one("select count() from track where name glob '*critical*'") == 0
    assert any("no critical path" in message for message in caplog.messages)


def test_without_a_graph_the_time_line_is_as_before_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="stashtrace"):
        processor = exported(trace_from_text("rank 0 io : bb"), tmp_path / "t.pftrace")
    assert processor.one("select count() from track where name glob '*critical*'") == 0
    assert processor.one("select count() from slice") > 0
    assert any("no critical path" in message for message in caplog.messages)


def test_a_wait_says_what_kept_the_late_rank(tmp_path: Path) -> None:
    build = TraceBuilder()
    for rank in range(2):
        slow = 40 * MS * rank
        build.rank(rank).worker(3).fetch(0, 0, 4 * MS + slow).io(
            MS, 3 * MS + slow, path="/data/shard-0117", blocked=True
        )
        build.rank(rank).batch_wait(0, 0, 5 * MS + slow, worker=3)
        build.rank(rank).phase("forward", 5 * MS + slow, 9 * MS + slow).phase("optimizer", 60 * MS, 61 * MS)
    build.collective({0: (9 * MS, 55 * MS), 1: (49 * MS, 55 * MS)})
    assert exported(build.trace(), tmp_path / "t.pftrace").rows(
        "select slice.name, display_value from args join slice using (arg_set_id) where key = 'debug.late_because'"
    ) == [("wait for rank 1", "data: storage 40.0 ms longer, worker 3, shard-0117")]
