"""Commands that read a run with steps: the spellings and formats that scripts rely on."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer
from stash_files import StashWriter, ms

from stashtrace.analysis.stalls.budget import STALLS
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, Phase, StallKind, ThreadRole

Run = Callable[..., Answer]
STEPS = 12


def write_run(directory: Path, *, prep_ms: int = 20, hang: bool = False) -> None:
    """Two ranks, 12 steps of 40 ms and what rank 0 waits for its batches; rank 1 waits for rank 0."""
    for rank in (0, 1):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        writer = StashWriter(directory, pid=100 + rank, env=env)
        phases, batches, calls, done = [], [], [], []
        length = 40 + prep_ms
        for step in range(STEPS):
            at = step * length
            wait = prep_ms if rank == 0 else 0
            batches.append(
                writer.row(
                    "batch",
                    begin_ticks=ms(at),
                    end_ticks=ms(at + wait + 0.1),
                    loader_id=1,
                    batch_index=step,
                    worker_id=-1,
                    phase_code=BatchPhase.WAIT,
                    cpu_ns=-1,
                    runqueue_ns=-1,
                )
            )
            for phase, begin, end in ((Phase.FORWARD, 1, 11), (Phase.BACKWARD, 11, 31), (Phase.OPTIMIZER, 38, 39)):
                late = wait if phase != Phase.OPTIMIZER else prep_ms
                phases.append(
                    writer.row(
                        "phase_span",
                        begin_ticks=ms(at + late + begin),
                        end_ticks=ms(at + late + end),
                        phase_code=phase,
                        phase_flags=2,
                        begin_cpu_ns=-1,
                        end_cpu_ns=-1,
                        begin_runqueue_ns=-1,
                        end_runqueue_ns=-1,
                    )
                )
            calls.append(
                writer.row(
                    "collective_call",
                    call_ticks=ms(at + wait + 31),
                    group_hash=7,
                    sequence=step,
                    message_bytes=4096,
                    collective_id=step + 1,
                    name_id=writer.intern("c10d::allreduce_"),
                    peer_rank=-1,
                    op_code=CollectiveOp.ALL_REDUCE,
                )
            )
            end = ms(at + prep_ms + 38)
            done.append(writer.row("collective_done", return_ticks=end, end_ticks=end, collective_id=step + 1))
        if hang and rank == 0:
            last = STEPS * length
            calls.append(
                writer.row(
                    "collective_call",
                    call_ticks=ms(last),
                    group_hash=7,
                    sequence=STEPS,
                    message_bytes=4096,
                    collective_id=STEPS + 1,
                    name_id=1,
                    peer_rank=-1,
                    op_code=CollectiveOp.ALL_REDUCE,
                )
            )
            batches.append(
                writer.row(
                    "batch",
                    begin_ticks=ms(last + 4000),
                    end_ticks=ms(last + 5000),
                    loader_id=2,
                    batch_index=0,
                    worker_id=0,
                    phase_code=BatchPhase.INDEX_WAIT,
                    cpu_ns=-1,
                    runqueue_ns=-1,
                )
            )
        names = [writer.intern(text) for text in ("default_pg", "gloo", "0,1", "main")]
        writer.add(
            "thread_info",
            [writer.row("thread_info", ticks=ms(0), tid=100 + rank, name_id=names[3], role_code=ThreadRole.STEP)],
        )
        writer.add(
            "group",
            [
                writer.row(
                    "group",
                    ticks=ms(0),
                    group_hash=7,
                    name_id=names[0],
                    backend_id=names[1],
                    members_id=names[2],
                    group_rank=rank,
                    group_size=2,
                )
            ],
        )
        writer.add("batch", batches)
        writer.add("phase_span", phases)
        writer.add("collective_call", calls)
        writer.add("collective_done", done)
        writer.save()


@pytest.fixture
def one(tmp_path: Path) -> Path:
    write_run(tmp_path / "one")
    return tmp_path / "one"


def stalls(run: Run, *words: str) -> list[dict[str, object]]:
    answer = run("analyze", "stalls", *words, "--format", "json")
    assert answer.code == 0, answer.err
    rows: list[dict[str, object]] = json.loads(answer.out)
    return rows


def test_stalls_as_json(run: Run, one: Path) -> None:
    rows = stalls(run, "one", "--warmup")
    assert tuple(rows[0]) == STALLS.names
    assert {type(row["stall_ns"]) for row in rows} == {int}
    assert {row["kind"] for row in rows} <= {kind.name.lower() for kind in StallKind}
    assert "compute" in {row["kind"] for row in rows}
    for rank in (0, 1):
        steps = {
            row["step"] for row in rows if row["rank"] == rank and isinstance(row["step"], int) and row["step"] >= 0
        }
        assert len(steps) == STEPS
    counted = stalls(run, "one")
    assert {row["step"] for row in counted} == set(range(5, STEPS))
    assert all(row in rows for row in counted)


def test_by_step_is_the_default_and_by_rank_sums(run: Run, one: Path) -> None:
    assert stalls(run, "one") == stalls(run, "one", "--by", "step")
    by_rank = stalls(run, "one", "--by", "rank")
    assert {row["rank"] for row in by_rank} == {0, 1}
    late = next(row for row in by_rank if row["rank"] == 1 and row["kind"] == "straggler")
    assert late["cause_rank"] == 0
    assert late["stall_ns"] == pytest.approx((STEPS - 5) * 20_000_000, rel=0.02)
    assert {row["rank"] for row in stalls(run, "one", "--by", "run")} == {-1}


def test_csv_and_table_hold_the_same_rows(run: Run, one: Path) -> None:
    rows = stalls(run, "one")
    as_csv = list(csv.DictReader(io.StringIO(run("analyze", "stalls", "one", "--format", "csv").out)))
    assert [{k: str(v) for k, v in row.items()} for row in rows] == as_csv
    table = run("analyze", "stalls", "one").out.splitlines()
    assert len(table) == len(rows) + 1
    titles = ["rank", "step", "kind", "stall", "method", "low", "high", "cause_rank", "cause_share_ratio"]
    assert table[0].split() == titles


def test_several_runs_say_which_row_is_whose(run: Run, one: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "two", prep_ms=0)
    rows = stalls(run, "one", "two")
    assert {row["path"] for row in rows} == {"one", "two"}
    assert len(rows) == len(stalls(run, "one")) + len(stalls(run, "two"))


@pytest.mark.parametrize("name", ["steps", "hidden", "collectives", "stragglers"])
def test_every_analysis_prints_in_every_format(run: Run, one: Path, name: str) -> None:
    for form in ("table", "json", "csv"):
        answer = run("analyze", name, "one", "--format", form)
        assert (answer.code, answer.err) == (0, ""), form
        assert answer.out


def test_an_analysis_without_by_says_so(run: Run, one: Path) -> None:
    answer = run("analyze", "steps", "one", "--by", "rank")
    assert (answer.code, answer.err) == (2, "error: analysis 'steps' has no option --by\n\nhint: leave it out\n")


def test_info_as_json(run: Run, one: Path) -> None:
    facts = json.loads(run("info", "one", "--format", "json").out)
    assert (facts["ranks"], facts["missing_ranks"], facts["steps"]) == ([0, 1], [], STEPS)
    assert facts["records"]["torch_step"] == 2 * 3 * STEPS
    assert facts["records"]["torch_distributed"] == 2 * (2 * STEPS + 1)
    assert isinstance(facts["losses"], list)


def test_info_in_words(run: Run, one: Path) -> None:
    lines = dict(line.split(maxsplit=1) for line in run("info", "one").out.splitlines() if len(line.split()) > 1)
    assert lines["ranks"] == "0,1"
    assert lines["steps"] == str(STEPS)


def test_summary_of_the_merge(run: Run, one: Path) -> None:
    answer = run("merge", "one")
    assert (answer.code, answer.out) == (0, "")
    words = " ".join(answer.err.split())
    assert "rank 0 prepares batches 20.0 ms a step (33 %) longer than the others" in words
    assert "rank 1 waits for it in all-reduce; without it: " in words
    assert (one / "summary.txt").read_text() == answer.err.lstrip("\n")


def test_export_and_its_cuts(run: Run, one: Path, tmp_path: Path) -> None:
    sizes = []
    for words in ([], ["--steps", "2:4"], ["--ranks", "1"], ["--window", "0.1:0.2"]):
        answer = run("export", "perfetto", "one", "-o", "x.pftrace", *words)
        assert (answer.code, answer.out) == (0, "")
        assert answer.err.startswith("wrote x.pftrace (")
        sizes.append((tmp_path / "x.pftrace").stat().st_size)
    assert sizes[0] == max(sizes)
    assert len(set(sizes)) == 4


def test_diff_gives_a_verdict(run: Run, one: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "two", prep_ms=0)
    answer = run("diff", "one", "two")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].startswith("jobs: nothing that was recorded differs (")
    assert lines[1].startswith("a step takes ")
    assert lines[2].startswith("two is faster: the median step takes ")
    assert "20.0 ms" in lines[2]
    assert "by kind of time, " in answer.out
    assert "both sides are the same recording" in run("diff", "one", "one").out.splitlines()[1]
    rows = json.loads(run("diff", "one", "two", "--format", "json").out)
    assert rows[0]["kind"] == "step"
    assert rows[0]["verdict"] == "faster"


@pytest.mark.parametrize("words", [("status",), ("live", "--once"), ("live",)], ids=" ".join)
def test_live_names_the_rank_that_hangs(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    write_run(tmp_path / "hung", hang=True)
    answer = run(*words, "hung")
    assert (answer.code, answer.err) == (0, "")
    assert (
        "  ▶ the job hung: rank 1 has not entered all-reduce 12 of default_pg, 4.10 KB\n"
        "    rank 0 waits in it for 5.00 s\n" in answer.out
    )
    assert f"2 ranks on 1 host, {STEPS} steps" in answer.out


def test_status_of_a_run_in_order(run: Run, one: Path) -> None:
    answer = run("status", "one")
    assert answer.out == run("live", "one", "--once").out
    assert "hung" not in answer.out


def test_doctor_says_what_each_line_means(run: Run) -> None:
    checks = json.loads(run("doctor", "--format", "json").out)
    assert all(set(c) == {"name", "state", "detail", "meaning"} and c["meaning"] for c in checks)
    assert {c["name"]: c["state"] for c in checks}["record path"] == "ok"
    shown = run("doctor", "--", "sh").out
    assert "this command  ok" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "this command  broken" in run("doctor", "--", "no-such-program").out


@pytest.mark.parametrize(
    ("options", "state"),
    [
        (["-I"], "partly"),
        (["-uS"], "partly"),
        (["-W", "ignore", "-E"], "partly"),
        (["-Wignore::ImportWarning"], "ok"),
        (["-bWerror::SyntaxWarning"], "ok"),
        (["-Ximporttime"], "ok"),
        (["-uc", "IES"], "ok"),
        (["-um", "IES"], "ok"),
        (["-mIES"], "ok"),
        (["-X", "faulthandler", "-s"], "ok"),
    ],
)
def test_doctor_knows_what_an_option_of_python_is(run: Run, options: list[str], state: str) -> None:
    checks = json.loads(run("doctor", "--format", "json", "--", sys.executable, *options, "train.py").out)
    assert {c["name"]: c["state"] for c in checks}["this command"] == state
