"""Kineto files of ranks without a device: only operators are compute, and what is not read is not called compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from importers.kineto_files import PID, device, host, launch, step, write
from importers.read_back import load
from summary.scenes import verdicts

import stashtrace
from stashtrace.schema.trace import Trace

STEPS = 5
BACKEND = PID + 9
Event = dict[str, Any]


def _steps(*more: Event) -> list[Event]:
    """Steps of 1,000 us, each with the events of the first one."""
    events = []
    for n in range(STEPS):
        events.append(step(n, 1000 * n, 1000))
        for event in more:
            whole, _, part = str(event["ts"]).partition(".")
            events.append({**event, "ts": f"{int(whole) + 1000 * n}" + (f".{part}" if part else "")})
    return events


def _budget(trace: Trace, rank: int = 0) -> dict[str, tuple[int, int, int]]:
    """Kind -> point, low and high of a rank's steps, in microseconds a step."""
    rows = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    own = rows.take(rows["rank"] == rank)
    return {str(r["kind"]): tuple(r[c] // 1000 // STEPS for c in ("stall_ns", "low_ns", "high_ns")) for r in own.rows()}


def _losses(trace: Trace) -> dict[str, str]:
    return {trace.text(r["name_code"]): trace.text(r["advice_code"]) for r in trace.losses.rows()}


AROUND = [
    host("train_step", 0, 990, cat="user_annotation"),
    host("## forward ##", 0, 100, cat="user_annotation"),
    host("## backward ##", 100, 800, cat="user_annotation"),
    host("Optimizer.step#SGD.step", 900, 80, cat="user_annotation"),
]


def test_only_operators_are_compute(tmp_path: Path) -> None:
    """170 us of operators in a step whose phases and annotations cover all of it: 83 % is no compute."""
    operators = [host("aten::mm", 10, 90), host("aten::mm", 300, 50), host("aten::add_", 900, 30)]
    trace = load(write(tmp_path / "rank0.json", _steps(*AROUND, *operators)))
    assert _budget(trace) == {"compute": (170, 170, 170), "other": (830, 0, 830), "python": (0, 0, 830)}
    (verdict,) = verdicts(trace)
    assert verdict.text == (
        "rank 0 runs no operator for 830 us a step (83 %): it waits, or runs Python; this recording does not say which"
    )


def test_python_stacks_name_the_function(tmp_path: Path) -> None:
    """Of 900 us without an operator, 700 are in sample(), of which 600 in sleep()."""
    functions = [
        host(name, begin, spent, cat="python_function")
        for name, begin, spent in (
            ("/home/me/train.py(1): <module>", 0, 1000),
            ("/home/me/train.py(20): sample", 100, 700),
            ("<built-in function sleep>", 150, 600),
            ("/home/me/train.py(31): update", 800, 190),
        )
    ]
    operators = [host("aten::mm", 0, 100), host("aten::add", 985, 15)]
    trace = load(write(tmp_path / "rank0.json", _steps(*operators, *functions)))
    (verdict,) = verdicts(trace)
    assert verdict.text.startswith(
        "rank 0 runs no operator for 885 us a step (88 %), mostly in <built-in function sleep>"
    )
    assert verdict.evidence == ("600 us a step in <built-in function sleep>",)


def test_a_collective_in_flight_inside_a_phase_is_waiting(tmp_path: Path) -> None:
    """All-reduce from 200 to 900 us, inside backward: what no operator hides of it is link or straggler time."""
    operators = [host("aten::mm", 10, 80), host("aten::mm", 150, 250), host("aten::add_", 900, 30)]
    talk = host("gloo:all_reduce", 200, 700, cat="user_annotation", tid=BACKEND)
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    trace = load(write(tmp_path / "rank0.json", _steps(*AROUND, *operators, talk), distributedInfo=info))
    budget = _budget(trace)
    assert budget["compute"] == (360, 360, 360)
    assert budget["interconnect"][0] == 500
    hidden = stashtrace.analyze(trace, "hidden")
    assert hidden["hidden_communication_ns"].tolist() == [200_000] * STEPS


def test_compilations_are_no_operators(tmp_path: Path) -> None:
    """600 us of each step are spent in torch.compile, whose operators make no compute of it."""
    note = "entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id=0/2"
    compiling = [
        host(note, 95, 2, cat="user_annotation"),
        host("_compile.compile_inner (dynamo_timed)", 100, 600),
        host("OutputGraph.call_user_compiler (dynamo_timed)", 150, 500),
        host("aten::sin", 200, 300),
    ]
    operators = [host("aten::mm", 10, 80), host("aten::mm", 700, 280)]
    trace = load(write(tmp_path / "rank0.json", _steps(*operators, *compiling)))
    assert _budget(trace)["python"][0] == 600
    assert 360 <= _budget(trace)["compute"][0] <= 400  # short gaps between operators are theirs
    verdict = next(v for v in verdicts(trace) if v.kind == "host")
    assert verdict.text.endswith("60 %) in torch.compile")
    assert any("compiles again in " in line for line in verdict.evidence)


def test_operators_that_fill_the_step_are_compute_bound(tmp_path: Path) -> None:
    operators = [host("aten::mm", 10, 980)]
    trace = load(write(tmp_path / "rank0.json", _steps(*AROUND, *operators)))
    assert [v.kind for v in verdicts(trace)] == ["compute_bound"]


def test_operators_of_another_thread_may_be_waited_for(tmp_path: Path) -> None:
    operators = [host("aten::mm", 10, 90), host("aten::mm", 100, 890, tid=PID + 1)]
    trace = load(write(tmp_path / "rank0.json", _steps(*AROUND, *operators)))
    assert _budget(trace)["compute"] == (980, 90, 980)
    assert [v.kind for v in verdicts(trace)] == ["not_told"]


@pytest.mark.parametrize("category", ["mtia_ccp_events", "hpu_op", "cuda_profiler_range", "npu_kernel_of_2031", ""])
def test_work_that_is_not_read_forbids_compute_bound(tmp_path: Path, category: str) -> None:
    operators = [host("aten::mm", 10, 980)]
    unread = device("fused_kernel", 100, 300, cat=category)
    trace = load(write(tmp_path / "rank0.json", _steps(*operators, unread)))
    assert f"{STEPS} {category or 'without a category'}" in _losses(trace)["device_work_not_read"]
    (verdict,) = verdicts(trace)
    assert verdict.kind == "not_told"
    assert (
        f"the recording of rank 0 lacks or hides work of a device: {STEPS} {category}".rstrip() in verdict.evidence[0]
    )


def test_kernels_next_to_unread_work_are_not_compute_bound(tmp_path: Path) -> None:
    events = _steps(
        launch(1, 0), device("gemm", 5, 990, correlation=1), device("range", 0, 900, cat="cuda_profiler_range")
    )
    trace = load(write(tmp_path / "rank0.json", events))
    assert [v.kind for v in verdicts(trace)] == ["not_told"]


@pytest.mark.parametrize("category", ["python_function", "cpu_instant_event", "gpu_user_annotation", "overhead"])
def test_marks_are_no_unread_work(tmp_path: Path, category: str) -> None:
    trace = load(write(tmp_path / "rank0.json", _steps(host("aten::mm", 10, 980), host("mark", 20, 5, cat=category))))
    assert "device_work_not_read" not in _losses(trace)
    assert [v.kind for v in verdicts(trace)] == ["compute_bound"]


@pytest.mark.parametrize(
    ("more", "top", "reason"),
    [
        ([launch(1, 20)], {}, "device_work_missing"),
        ([], {"deviceProperties": [{"id": 0, "name": "H100"}]}, "device_not_recorded"),
    ],
)
def test_a_device_without_any_work_is_not_compute_bound(
    tmp_path: Path, more: list[Event], top: dict[str, Any], reason: str
) -> None:
    trace = load(write(tmp_path / "rank0.json", _steps(host("aten::mm", 10, 980), *more), **top))
    assert reason in _losses(trace)
    assert [v.kind for v in verdicts(trace)] == ["not_told"]


RECORDED = Path(__file__).resolve().parents[1] / "data" / "kineto_gloo"


def test_a_recorded_job_of_two_ranks_of_gloo() -> None:
    """Six steps of DDP on the CPU by torch 2.13's profiler; rank 1 sleeps 30 ms in each, in an annotation."""
    trace = load(*(RECORDED / f"rank{rank}.json.gz" for rank in range(2)))
    budgets = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    spent = {
        (r["rank"], str(r["kind"])): [r[c] / r["steps_count"] / 1e6 for c in ("low_ns", "stall_ns", "high_ns")]
        for r in budgets.rows()
    }
    for rank in range(2):
        low, point, high = spent[rank, "compute"]
        assert low == point == high < 10, "operators alone, of a step of 41 ms"
    assert spent[1, "other"][1] > 30
    assert spent[0, "straggler"][1] > 25
    late = stashtrace.analyze(trace, "straggler_causes")
    assert set(late["cause_rank"][(late["rank"] == 0) & (late["stall_ns"] > 0)].tolist()) == {1}
    said = verdicts(trace)
    assert not any(verdict.kind == "compute_bound" for verdict in said)
    assert next(verdict for verdict in said if verdict.kind == "late").text.endswith(", all of it for rank 1")
    assert said[0].text.startswith("rank 1 runs no operator for 37.4 ms a step (89 %), mostly in sample: it waits, or")
