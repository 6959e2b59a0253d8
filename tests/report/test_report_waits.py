"""Cut-outs of the timeline: lanes and arrows of a wait are recorded rows at their moments, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from builders import MS, TraceBuilder
from summary.scenes import job

from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stragglers.causes import CAUSES
from stashtrace.analysis.stragglers.late import LATE, late
from stashtrace.report.costliest_waits import costliest_waits
from stashtrace.report.policy import POLICY
from stashtrace.report.wait_text import wait_text
from stashtrace.schema.trace import Trace


def waits_of(trace: Trace) -> dict[str, Any]:
    facts = gather(trace)
    return costliest_waits(trace, facts.tables["steps"], facts.tables["stalls"])


def roles(cut: dict[str, Any]) -> list[str]:
    return [lane["role"] for lane in cut["lanes"]]


def pieces(cut: dict[str, Any], role: str) -> list[tuple[str, int, int]]:
    """Bars of the first lane of a role: kind, and begin and end on the clock of the trace."""
    lane = next(lane for lane in cut["lanes"] if lane["role"] == role)
    origin = cut["begin_ns"]
    return [(p["kind"], p["begin_ns"] + origin, p["end_ns"] + origin) for p in lane["pieces"]]


def test_a_late_loader_is_followed_from_the_file_to_the_rank_that_waits() -> None:
    build, trace = job(prep={0: 13}, fetch={0: 44})
    cut = waits_of(trace)["cut_outs"][0]
    assert roles(cut) == ["file", "worker", "late", "victim"]
    file, worker, late_rank, victim = cut["lanes"]
    assert (file["label"], file["name"]) == ("train-0117.tar", "/data/train-0117.tar")
    assert worker["label"] == "worker 0 of rank 0"
    assert (late_rank["label"], victim["label"]) == ("rank 0", "rank 1")
    assert "rank 1 waited 57.0 ms" in cut["text"]
    step = cut["step"]
    batch = next(r for r in build.rows["batches"] if r["batch_index"] == step and r["cpu_ns"] >= 0)
    reads = {(r["begin_ns"], r["end_ns"]) for r in build.rows["io"]}
    drawn = [(begin, end) for kind, begin, end in pieces(cut, "file") if kind == "blocked"]
    assert drawn
    assert all(any(b <= begin and end <= e for b, e in reads) for begin, end in drawn)
    assert any(begin == batch["begin_ns"] or end == batch["end_ns"] for _, begin, end in pieces(cut, "worker"))


def test_a_wait_before_its_processes_began_is_drawn_whole() -> None:
    """As with a host whose clock is ahead."""
    build, _ = job(sleep={1: 30}, ranks=2)
    last_ns = max(row["end_ns"] for row in build.rows["collectives"])
    for process in build.rows["processes"]:
        process.update(begin_ns=last_ns, end_ns=last_ns + MS)
    cut = waits_of(build.trace())["cut_outs"][0]
    assert roles(cut) == ["late", "victim"]
    assert 0 <= cut["entered_ns"] < cut["end_ns"] - cut["begin_ns"]


def test_the_arrow_is_where_the_late_rank_enters() -> None:
    build, trace = job(sleep={1: 30}, ranks=2)
    cut = waits_of(trace)["cut_outs"][0]
    assert roles(cut) == ["late", "victim"]
    table = late(trace)
    row = next(r for r in table.rows() if r["sequence"] == cut["sequence"])
    entered = [r["call_ns"] for r in build.rows["collectives"] if r["sequence"] == cut["sequence"] and r["rank"] == 1]
    (arrow,) = cut["arrows"]
    assert cut["begin_ns"] + arrow["to_ns"] == entered[0]
    assert (arrow["from_lane"], arrow["to_lane"]) == (0, 1)
    assert cut["begin_ns"] <= row["begin_ns"], "all of the wait is in the picture"
    assert cut["end_ns"] >= entered[0]


def test_the_bars_of_a_rank_are_its_budget() -> None:
    _, trace = job(prep={0: 44})
    cut = waits_of(trace)["cut_outs"][0]
    straggling = [end - begin for kind, begin, end in pieces(cut, "victim") if kind == "straggler"]
    assert sum(straggling) == pytest.approx(cut["wait_ns"], rel=0.01)
    for lane in cut["lanes"]:
        ends = [(p["begin_ns"], p["end_ns"]) for p in lane["pieces"]]
        assert all(0 <= begin < end <= cut["end_ns"] - cut["begin_ns"] for begin, end in ends)
        assert ends == sorted(ends)


def test_the_bars_of_a_rank_never_cover_each_other() -> None:
    build = TraceBuilder()
    rank, worker = build.rank(0), build.rank(0).worker(0)
    for step in range(8):
        at = 200 * MS * step
        worker.fetch(step, at, at + 150 * MS, cpu=100 * MS, runqueue=0)
        for part in range(5):  # reads so short that the bars around them are close
            worker.io(at + 30 * MS * part, at + 30 * MS * part + MS // 3, path="/data/a", blocked=True)
        rank.batch_wait(step, at, at + 151 * MS, worker=0)
        rank.phase("forward", at + 151 * MS, at + 160 * MS).phase("backward", at + 160 * MS, at + 199 * MS)
        rank.phase("optimizer", at + 199 * MS, at + 200 * MS)
    (cut,) = waits_of(build.trace())["cut_outs"]
    bars = pieces(cut, "waiting")
    assert len({kind for kind, _, _ in bars}) > 1
    assert all(before[2] <= after[1] for before, after in pairwise(bars))


def test_no_lane_is_made_up_where_nothing_was_recorded() -> None:
    trace = job(prep={0: 44})[1]
    bare = trace.replace(
        batches=trace.batches.take(slice(0, 0)), io=trace.io.take(slice(0, 0)), waits=trace.waits.take(slice(0, 0))
    )
    for cut in waits_of(bare)["cut_outs"]:
        assert set(roles(cut)) <= {"late", "victim"}


def test_few_of_many_victims_are_drawn_and_they_waited_longest() -> None:
    cut = waits_of(job(ranks=12, sleep={5: 40})[1])["cut_outs"][0]
    assert cut["late_rank"] == 5
    assert roles(cut) == ["late"] + ["victim"] * POLICY.waiting_ranks_count
    assert cut["waiting_count"] == 11
    assert cut["shown_count"] == POLICY.waiting_ranks_count
    assert 5 not in [lane["rank"] for lane in cut["lanes"][1:]]


def test_similar_waits_have_one_picture_and_small_ones_none() -> None:
    found = waits_of(job(ranks=4, prep={0: 44})[1])
    assert len(found["cut_outs"]) == 1
    assert 1 < len(found["listed"]) <= POLICY.listed_waits_count
    costs = [row["total_wait_ns"] for row in found["listed"]]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] * 10 >= costs[0]
    assert (
        len(waits_of(job(ranks=8, prep={r: 20 + 9 * r for r in range(8)})[1])["cut_outs"]) <= POLICY.cut_outs_count + 1
    )


def test_a_rank_alone_has_the_cut_out_of_its_longest_wait_for_a_batch() -> None:
    _, trace = job(ranks=1, fetch={0: 30})
    (cut,) = waits_of(trace)["cut_outs"]
    assert cut["what"] == "batch"
    assert roles(cut) == ["file", "worker", "waiting"]
    assert cut["low_ns"] <= cut["wait_ns"] <= cut["high_ns"]
    (arrow,) = cut["arrows"][:1]
    assert arrow["from_ns"] <= arrow["to_ns"]
    assert next(kind for kind, _, _ in pieces(cut, "waiting")) in ("fetch", "prep", "compute")


def test_a_run_without_waits_has_none() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(8):
        at = 20 * MS * step
        rank.phase("forward", at, at + 9 * MS).phase("backward", at + 9 * MS, at + 19 * MS)
        rank.phase("optimizer", at + 19 * MS, at + 20 * MS)
    found = waits_of(build.trace())
    assert (found["cut_outs"], found["listed"]) == ([], [])


def test_a_job_that_hangs_shows_who_is_inside() -> None:
    build = job(ranks=3)[0]
    end = max(r["end_ns"] for r in build.rows["phases"])
    build.rank(0).lives(0, end + 9000 * MS)
    build.collective({0: (end + MS, -1), 2: (end + 2 * MS, -1)}, message_bytes=1000)
    for number in (1, 2):
        build.rank(number).lives(0, end + 9000 * MS)
    found = waits_of(build.trace())
    hung = [cut for cut in found["cut_outs"] if cut.get("method") == "hung"]
    assert hung
    assert "hang" in hung[0]["text"]
    assert hung[0]["end_ns"] > hung[0]["begin_ns"]


ROW: dict[str, Any] = {
    "waiting_ranks": "0-2,4-7",
    "op": "all_reduce",
    "sequence": 4182,
    "late_rank": 3,
    "wait_ns": 38 * MS,
    "method": "clock",
    "cause_kind": "fetch",
    "cause_ns": 38 * MS,
    "cause_worker_id": 5,
    "cause_name": "/data/shard-0117",
    "named_ns": 41 * MS,
}


def sentence(row: dict[str, Any]) -> str:
    """A row of ``late`` in words."""
    return wait_text({c.name: "" if c.dtype.startswith("U") else -1 for c in LATE.columns} | row)


def test_the_worker_and_the_file() -> None:
    assert sentence(ROW) == (
        "ranks 0-2,4-7 waited up to 38.0 ms in all-reduce 4182; rank 3 was late:"
        " its worker 5 spent 41.0 ms reading shard-0117"
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"named_ns": 19 * MS}, "its worker 5 spent 19.0 ms reading shard-0117 (50 % of the longest of these waits)"),
        ({"named_ns": 37 * MS}, "its worker 5 spent 37.0 ms reading shard-0117"),
        (
            {"waiting_ranks": "2", "cause_kind": "sleep", "cause_ns": 29 * MS, "cause_name": ""},
            "it slept 29.0 ms longer (76 % of that wait)",
        ),
        (
            {
                "waiting_ranks": "2",
                "cause_kind": "compute",
                "cause_ns": 29 * MS,
                "cause_name": "k",
                "named_ns": 20 * MS,
            },
            "it computed 29.0 ms longer (76 % of that wait), 20.0 ms of that in k",
        ),
    ],
)
def test_a_reason_that_is_shorter_than_the_wait_is_said_to_be_a_part_of_it(row: dict[str, Any], said: str) -> None:
    assert sentence(ROW | row).endswith(f"rank 3 was late: {said}")


def test_a_list_of_ranks_too_long_to_read_is_cut() -> None:
    every_other = ",".join(map(str, range(0, 1024, 2)))
    assert "ranks 0, 2, 4 … 1022 waited up to" in sentence(ROW | {"waiting_ranks": every_other})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cause_kind": "unknown"}, "rank 3 was late; the recording does not show why"),
        ({"late_by_ns": 2 * MS}, "rank 3 was late: several kinds of its time differ from those of the others"),
        (
            {"cause_kind": "compute", "cause_name": "gemm", "named_ns": 38 * MS},
            "rank 3 was late: it computed 38.0 ms longer than the median of the others in gemm",
        ),
        (
            {"cause_kind": "compute", "cause_name": "between phases", "named_ns": 20 * MS},
            "it computed 38.0 ms longer than the median of the others, 20.0 ms of that outside forward, backward and",
        ),
        (
            {"cause_kind": "checkpoint", "cause_name": "/out/model.pt", "cause_worker_id": -1},
            "it was 38.0 ms longer than the median of the others in checkpoints (model.pt)",
        ),
        (
            {"cause_kind": "straggler", "cause_name": "rank 9", "cause_worker_id": -1},
            "it waited 38.0 ms longer than the median of the others for rank 9 in another group",
        ),
        (
            {"cause_kind": "other", "cause_name": ""},
            "it was blocked 38.0 ms longer than the median of the others with no known cause",
        ),
        (
            {"cause_kind": "other", "cause_name": "gil"},
            "it was blocked 38.0 ms longer than the median of the others waiting for the GIL, which another thread"
            " holds",
        ),
        ({"late_rank": -1, "cause_kind": "unknown"}, "the clocks do not show for whom"),
        (
            {"method": "hung", "waiting_ranks": "2", "cause_kind": "unknown"},
            "rank 2 hangs in all-reduce 4182, which rank 3 never entered",
        ),
    ],
)
def test_other_causes(change: dict[str, Any], expected: str) -> None:
    assert expected in sentence(ROW | change)


@pytest.mark.parametrize("kind", CAUSES)
def test_every_cause_has_words(kind: str) -> None:
    reported = sentence(ROW | {"cause_kind": kind, "cause_name": ""})
    assert "38.0 ms" in reported.partition("late: ")[2]


def test_rows_of_the_analysis_fit() -> None:
    build = TraceBuilder()
    build.collective({0: (0, 10 * MS), 1: (9 * MS, 10 * MS)})
    (row,) = analyze(build.trace(), "late").rows()
    assert wait_text(row) == "rank 0 waited 9.00 ms in all-reduce 0; rank 1 was late; the recording does not show why"
