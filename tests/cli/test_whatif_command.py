"""``stashtrace whatif``: what it prints, its options, and its complaints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from importers.kineto_files import device, host, launch, rank_of_two, step
from importers.kineto_files import write as write_kineto
from pipeline_files import two_stages, write

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.replay.changes import BUCKET, QUANTITIES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of 4 ranks, of which rank 2 is 8 ms late in each step; its workers set the pace."""
    out = tmp_path_factory.mktemp("whatif") / "made"
    assert write_synthetic([str(out), "--ranks", "4", "--steps", "30", "--late-rank", "2", "--late", "8"]) == 0
    return out


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["whatif", *arguments]) == 0
    return capsys.readouterr().out


def test_what_to_fix_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answered(capsys, str(run)).splitlines()
    assert lines[0] == "a step takes 123 ms on average over 25 steps"
    assert lines[1].startswith("a replay of the unchanged run is off by 0 %; ")
    assert lines[2].endswith("other recordings may differ by 4 %, with a change by +/-")
    assert lines[4].split() == ["change", "step", "+/-", "saves", "of", "step", "largest", "part", "then"]
    # The summary of this run advises three workers: so does the ranking.
    assert {"prep=x0.5", "storage=0", "workers=3"} == {line.split()[0] for line in lines[5:8]}
    end = lines.index("", 5)
    saved = [float(line.split("%")[1].split()[-1]) for line in lines[5:end]]
    assert saved == sorted(saved, reverse=True)
    assert lines[end + 1].startswith("critical path: ")
    assert "rank 2 data: prep" in lines[end + 1]
    assert max(map(len, lines)) < 80


def test_the_critical_path_as_json_adds_up(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported = json.loads(answered(capsys, str(run), "--format", "json"))["critical_path"]
    assert sum(row["share_ratio"] for row in reported["shares"]) == pytest.approx(1)
    assert sum(row["ambiguous_ratio"] for row in reported["shares"]) == pytest.approx(reported["ambiguous_ratio"])
    assert reported["sentence"].startswith("critical path: ")


def test_a_cause_of_the_summary_is_taken_away(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "causes", str(run), "--format", "json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)
    reported = json.loads(answered(capsys, str(run), "cause=1", "--format", "json"))
    (answer,) = reported["answers"]
    saved = answer["replayed_ns"] - answer["high_ns"], answer["replayed_ns"] - answer["low_ns"]
    assert first["saved_low_ns"] <= saved[0] <= saved[1] <= first["saved_high_ns"] * 1.001
    text = answered(capsys, str(run), "cause=1")
    assert any(line.startswith("  cause=1 ") for line in text.splitlines())
    for words, why in (
        (["cause=1", "compute=x0.5"], "cause=N holds together with other causes alone"),
        (["cause=first"], "cause cannot be first"),
        ([f"cause={len(others) + 2}"], f"cause={len(others) + 2}: the run has "),
    ):
        assert main(["whatif", str(run), *words]) != 0
        assert why in capsys.readouterr().err


def warnings_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("! ")]


def test_a_whole_recording_has_no_warning(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warnings_of(answered(capsys, str(run))) == []
    assert json.loads(answered(capsys, str(run), "--format", "json"))["limits"] == []


def test_ranks_without_a_file_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of_two(tmp_path / "rank0.json", 0, late_us=0.0)
    text = answered(capsys, str(tmp_path))
    assert warnings_of(text) == ["! no file of rank 1 of 2: who was late is only known among the others"]
    assert "shared evenly" not in text
    assert main(["whatif", str(tmp_path), "--set", "straggler=0"]) == 4
    assert "only one rank was recorded" in capsys.readouterr().err


def test_a_file_that_was_cut_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        rank_of_two(tmp_path / f"rank{rank}.json", rank, late_us=0.0)
    whole = (tmp_path / "rank1.json").read_text()
    (tmp_path / "rank1.json").write_text(whole[: int(0.95 * len(whole))])
    warnings = warnings_of(answered(capsys, str(tmp_path)))
    assert any(line.startswith("! 1 file cut (kineto): rank1.json ends early") for line in warnings), warnings


def test_nothing_is_predicted_where_the_causes_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels that begin 500 us after their launch, on a stream that nothing else runs on: half a step."""
    events = []
    for n in range(4):
        at = 1000.0 * n
        events += [
            step(n, at, 990),
            launch(n + 1, at + 20),
            device("gemm<float>", at + 525, 400, correlation=n + 1),
            host("cudaDeviceSynchronize", at + 30, 910, cat="cuda_runtime", correlation=n + 100),
        ]
    kineto = str(write_kineto(tmp_path / "rank0.json", events))
    text = answered(capsys, kineto)
    assert "no change is predicted: " in text
    assert "saves" not in text
    assert "critical path: " in text
    reported = json.loads(answered(capsys, kineto, "--format", "json"))
    assert reported["answers"] == []
    assert reported["run"]["gap_ratio"] == pytest.approx(0.4, abs=0.1)
    assert main(["whatif", kineto, "--set", "compute=x0.5"]) == 4
    assert "this run allows no prediction" in capsys.readouterr().err


def test_how_a_job_ended_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = tmp_path / "ended"
    shutil.copytree(run, ended)
    facts = json.loads((ended / "run.json").read_text())
    (ended / "run.json").write_text(json.dumps(facts | {"signal": 9, "steps": "3:20"}))
    assert [line.partition(";")[0] for line in warnings_of(answered(capsys, str(ended)))] == [
        "! the job was ended by signal 9 (SIGKILL)",
        "! only steps 3:20 of the job were recorded, counted in optimizer updates",
    ]


def test_a_recording_without_steps_is_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kineto = tmp_path / "rank0.json"
    rank_of_two(kineto, 0, late_us=0.0)
    unmarked = json.loads(kineto.read_text())
    marks = [event for event in unmarked["traceEvents"] if event.get("cat") == "user_annotation"]
    assert marks
    unmarked["traceEvents"] = [event for event in unmarked["traceEvents"] if event not in marks]
    kineto.write_text(json.dumps(unmarked))
    assert "! no step is marked: the whole recording counts as one step" in answered(capsys, str(kineto)).splitlines()


def test_now_is_the_step_as_it_was_and_a_change_of_nothing_changes_no_row(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = answered(capsys, str(run), "--set", "compute=x1")
    rows = [line.split() for line in text[text.index("  mean of all ranks") :].splitlines()[1:]]
    assert len(rows) >= 3
    for name, *cells in rows:
        now, then = cells[:2], cells[2:]
        assert now == then, name
    reported = {name: float(cells[0]) * {"ms": 1, "us": 1e-3}[cells[1]] for name, *cells in rows}
    assert reported["step"] == pytest.approx(123, rel=0.01)
    assert sum(reported.values()) == pytest.approx(2 * reported["step"], rel=0.02)


def test_several_changes_hold_together(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, both = (
        json.loads(answered(capsys, str(run), *(f"--set={text}" for text in changes), "--format", "json"))
        for changes in (["prep=x0.5"], ["prep=x0.5", "compute=x0.5"])
    )
    (single,), (double,) = one["answers"], both["answers"]
    assert double["changes"] == ["prep=x0.5", "compute=x0.5"]
    assert double["high_ns"] < single["high_ns"] < one["run"]["measured_ns"]
    assert sum(double["budget_ns"].values()) == pytest.approx(double["high_ns"], rel=0.05)
    text = answered(capsys, str(run), "--set", "prep=x0.5", "--set", "compute=x0.5")
    assert "prep=x0.5, compute=x0.5" in text
    assert "mean of all ranks" in text


def test_a_quantity_has_one_value(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(run), "--set", "compute=x2", "--set", "compute=0"]) == 2
    assert "compute is set more than once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ("speed=x2", "cannot change 'speed'", "compute, launch, python, compile, objects, copy, prep, storage"),
        ("network.bandwith=x2", "cannot change 'network.bandwith'", "did you mean 'network.bandwidth'?"),
        ("compute=fast", "compute cannot be fast", "x0.5"),
        ("network.bandwidth=0", "network.bandwidth cannot be 0", "10gbit"),
        (
            "workers",
            "'workers' is not QUANTITY=VALUE",
            "compute, launch, python, compile, objects, copy, prep, storage",
        ),
    ],
)
def test_an_unknown_change_is_one_line_with_what_is_known(
    run: Path, change: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(run), "--set", change]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said.partition("hint: ")[2]


def test_an_imported_trace_with_kernels_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        rank_of_two(tmp_path / f"rank{rank}.json", rank, late_us=100.0 * rank)
    assert main(["whatif", str(tmp_path), "--set", "launch=x0.5"]) == 0
    said = capsys.readouterr().out
    assert "run is off by 0 %" in said
    assert "launch=x0.5" in said


@pytest.mark.parametrize("quantity", [*QUANTITIES, BUCKET])
def test_a_change_is_known_by_its_form(quantity: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``h2d=0`` was taken for a file, for its digit."""
    assert main(["whatif", f"{quantity}=?"]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith(f"error: {quantity}")
    assert "does not exist" not in reported


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages of four replicas; rank 1 computes for twice as long: a step takes 10 s, of equal ranks 7.75 s."""
    return str(write(tmp_path_factory.mktemp("pipeline") / "trace-X.parquet", two_stages({(1, 0): 2.0})))


def test_what_it_costs_that_ranks_differ(pipeline: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answered(capsys, pipeline).splitlines()
    first = next(row for row, line in enumerate(lines) if line.startswith("with the work shared"))
    assert " ".join(lines[first : lines.index("", first)]) == (
        "with the work shared evenly among all ranks, a step (from the first rank's begin to the last one's end) would"
        " take 7.75 s instead of 10.0 s: the job is 1.29 times slower than that; rank 1 alone causes 100 % of the loss"
    )
    assert "shared evenly" not in answered(capsys, pipeline, "--set", "compute=x0.5")
    rows = json.loads(answered(capsys, pipeline, "--format", "json"))["slowdown"]
    assert (rows[0]["cause"], rows[0]["slowdown_ratio"]) == ("all", pytest.approx(10 / 7.75, rel=1e-5))
    assert len(rows) > 10
    # The workers of the made-up run set the pace of all ranks.
    assert "shared evenly" not in answered(capsys, str(run))
    rows = json.loads(answered(capsys, str(run), "--format", "json"))["slowdown"]
    assert [row["cause"] for row in rows] == ["all", "gap"]


@pytest.mark.parametrize(
    ("change", "step_ms"),
    [
        ("straggler=0", 7000),
        ("compute=x0.5", 5375),
        ("interconnect.latency=x2", 10375),
        ("interconnect.bandwidth=x2", 9812.5),
    ],
)
def test_changes_of_a_pipeline(pipeline: str, change: str, step_ms: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a step 0.25 s are messages and 0.5 s a reduction; at most 0.125 s of each is latency."""
    answer = json.loads(answered(capsys, pipeline, "--set", change, "--format", "json"))["answers"][0]
    assert answer["error_ratio"] < 1e-3
    assert sum(answer["budget_ns"].values()) == pytest.approx(answer["high_ns"], rel=1e-3)
    assert answer["high_ns"] / 1e6 == pytest.approx(step_ms, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("prep=x0.5", "nothing of their hosts"),
        ("fetch=0", "nothing of their hosts"),
        ("launch=x0.5", "nothing of their hosts"),
        ("network.bandwidth=x2", "known to count as link: network"),
    ],
)
def test_what_a_pipeline_says_nothing_of(
    pipeline: str, change: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", pipeline, "--set", change]) == 4
    said = capsys.readouterr().err
    assert what in said
    assert "in-host" in said or "links" in said


def made_up(out: Path, *options: str) -> str:
    """A run of 4 ranks: forward 30 ms, backward 50 ms, an all-reduce of 10 ms, an update of 20 ms."""
    assert write_synthetic([str(out), "--ranks", "4", "--steps", "30", "--optimizer", "20", *options]) == 0
    return str(out)


def test_advice_stands_behind_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_up(tmp_path / "run", "--workers", "0")
    found = json.loads(answered(capsys, run, "--format", "json"))["advice"]
    saved = {item["transformation"]: (item["saving_low_ns"], item["saving_high_ns"]) for item in found}
    assert saved["split_reorder"] == pytest.approx((15e6, 15e6), rel=0.01)  # 3 of 4 parts of the update
    assert saved["fuse"] == pytest.approx((0, 20e6), rel=0.01)
    assert saved["overlap"] == pytest.approx((0, 10e6 * (1 - 1 / 8)), rel=0.01)
    assert {item["moved_bytes"] for item in found} == {26_214_400}
    lines = answered(capsys, run).splitlines()
    assert sum(line.startswith("advice: ") for line in lines) == 3
    assert max(map(len, lines)) < 80
    assert "advice" not in answered(capsys, run, "--set", "prep=x0.5")


def test_what_does_not_set_the_pace_is_no_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers that are just fast enough leave nothing to save, however exposed a transfer is."""
    run = made_up(tmp_path / "run", "--wait", "1")
    assert json.loads(answered(capsys, run, "--format", "json"))["advice"] == []
    assert "advice" not in answered(capsys, run)
