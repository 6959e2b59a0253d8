"""benchmarks/gpu/gpu_job.py on the doubles: the questions, the jobs, and checks that can fail."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from device import build, fake_environment
from traced import ROOT

FOLDER = ROOT / "benchmarks/gpu"
#: What a busy machine can change.
TIMING = ("events_against_globaltimer", "events_serialise", "events_on_the_legacy_stream")


def collect(folder: Path, script: str, *parts: str) -> tuple[int, dict[str, Any]]:
    """Exit code of collect.py on the doubles, and the parts of its result."""
    doubles = fake_environment(folder / "doubles", f"devices 1\n{script}")
    environment = os.environ | doubles | {"STASHTRACE_NCCL_LIBRARY": str(build() / "fakes/nccl/libnccl.so.2")}
    command = [sys.executable, str(FOLDER / "collect.py"), "--out", str(folder / "out"), "--parts", *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    result = json.loads((folder / "out/result.json").read_text(encoding="utf-8"))
    return done.returncode, result["parts"]


def ask(folder: Path, script: str = "") -> dict[str, Any]:
    """What is found with the doubles."""
    environment = os.environ | fake_environment(folder, f"devices 1\n{script}")
    command = [sys.executable, "-S", str(FOLDER / "gpu_job.py"), "ask"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == bool(found["problems"])
    return found


def untimed(problems: list[str]) -> list[str]:
    return [problem for problem in problems if not problem.startswith(TIMING)]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of benchmarks/gpu as its scripts do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("cuda_driver", "gpu_checks", "gpu_jobs", "gpu_questions")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_each_question_is_answered(tmp_path: Path) -> None:
    found = ask(tmp_path)
    assert untimed(found["problems"]) == []
    answers = found["answers"]
    assert answers["bare_thread_mode"]["thread"] == {"context": False, "first": [0, 0], "again": [0, 2]}
    capture = answers["capture_beside_polling"]
    assert (capture["relaxed"]["end"], capture["relaxed"]["nodes"], capture["relaxed"]["replay"]) == (0, 2, [0, 0])
    assert capture["control"]["end"] == 901
    assert answers["events_against_globaltimer"].keys() == {"20 us", "200 us", "2000 us"}
    assert answers["dead_handles"]["push"] == 709, "the double's answer for a context that was reset"


def test_a_driver_that_keeps_bare_threads_from_captures_is_a_problem(tmp_path: Path) -> None:
    problems = untimed(ask(tmp_path, "fail cuThreadExchangeStreamCaptureMode 201")["problems"])
    assert [problem.partition(":")[0] for problem in problems] == ["bare_thread_mode", "capture_beside_polling"]
    assert "polling breaks captures (end 901)" in problems[1]


def test_what_dies_or_hangs_has_reported_what_it_knew(modules: Any, tmp_path: Path) -> None:
    questions: ModuleType = modules("gpu_questions")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "print('{\"reset\": 0}', flush=True)\n"
        "if sys.argv[2] == 'dead_handles': os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if sys.argv[2] == 'uuids': time.sleep(600)\n",
        encoding="utf-8",
    )
    questions.QUESTION_LIMIT_S = 5.0
    questions.QUESTIONS = (questions.dead_handles, questions.uuids)
    found = questions.ask_all(script, 120)
    assert found["dead_handles"] == {"reset": 0, "exit": -11, "error": ""}
    assert found["uuids"] == {"reset": 0, "no_end_within_s": 5}
    assert list(questions.problems(found)) == [
        "dead_handles: no full answer (exit -11)",
        "uuids: no full answer (no_end_within_s 5)",
    ]


def test_jobs_are_recorded_as_they_say(tmp_path: Path) -> None:
    _, parts = collect(tmp_path, "", "job", "nccl")
    assert (parts["job"]["status"], parts["job"]["problems"]) == ("passed", [])
    assert parts["nccl"]["problems"] == []
    jobs = json.loads((tmp_path / "out/jobs.json").read_text(encoding="utf-8"))
    assert jobs.keys() == {"job", "nccl-events", "nccl-plugin", "nccl-non-blocking"}
    for one in jobs["nccl-non-blocking"]["operations"].values():
        assert one["recorded"] == one["expected"]
    assert jobs["job"]["copies"] == {"recorded": 80, "timed": 80, "expected": 80}
    assert jobs["nccl-events"]["operations"]["rank 1 send"] == {"recorded": 40, "timed": 40, "expected": 40}


def test_a_clock_of_events_that_runs_fast_is_found(tmp_path: Path) -> None:
    code, parts = collect(tmp_path, "event.drift 100000", "job")  # a tenth
    assert code == 1
    assert parts["job"]["status"] == "failed"
    (problem,) = [text for text in parts["job"]["problems"] if text.startswith("graphs: ")]
    assert problem.endswith("us more between the events than in the kernels by their stamps"), "2 ms, 200 us more"


class Rows(dict[str, Any]):
    """Columns with the calls of a table that the checks use."""

    def __len__(self) -> int:
        return len(self["call_ns"])

    def take(self, chosen: Any) -> Rows:
        return Rows({name: column[chosen] for name, column in self.items()})


def two_steps() -> Rows:
    """Four operations in each of two steps, on the device right after their calls."""
    call_ns = np.array([0, 1, 2, 3, 1000, 1001, 1002, 1003], np.int64) * 1000
    begin_ns = np.array([10, 110, 210, 310, 1010, 1110, 1210, 1310], np.int64) * 1000
    return Rows(
        call_ns=call_ns, device_begin_ns=begin_ns, device_end_ns=begin_ns + 90_000, peer_rank=np.full(8, -1, np.int64)
    )


def shift(rows: Rows, by_ns: int, chosen: slice) -> Rows:
    moved = Rows({name: column.copy() for name, column in rows.items()})
    for name in ("device_begin_ns", "device_end_ns"):
        moved[name][chosen] += by_ns
    return moved


@pytest.mark.parametrize(
    ("by_ns", "chosen", "said"),
    [
        (0, slice(0), []),
        (-100_000, slice(4, 5), ["1 operations are timed before their call"]),
        (900_000, slice(3, 4), ["1 operations are timed after their step", "1 operations are timed during another"]),
        (-50_000, slice(1, 2), ["1 operations are timed before their call", "1 operations are timed during another"]),
    ],
)
def test_times_of_other_operations_are_found(modules: Any, by_ns: int, chosen: slice, said: list[str]) -> None:
    checks: ModuleType = modules("gpu_checks")
    rows = shift(two_steps(), by_ns, chosen)
    if by_ns == -50_000:
        rows["device_begin_ns"][1] = -60_000
    timed = np.full(8, True)
    assert list(checks.misplaced(rows, timed, 0, 2, 20_000)) == [f"rank 0: {text}" for text in said]
    assert list(checks.misplaced(rows, np.full(8, False), 0, 2, 20_000)) == [], "without times none is wrong"


@pytest.mark.parametrize(("waited_ns", "said"), [(30_000_000, 0), (1_000_000, 1), (-1, 1)])
def test_a_late_rank_that_was_not_seen_is_found(modules: Any, waited_ns: int, said: int) -> None:
    checks: ModuleType = modules("gpu_checks")
    begin_ns = np.arange(8, dtype=np.int64) * 1_000_000
    end_ns = np.where(waited_ns < 0, -1, begin_ns + waited_ns)
    rows = Rows(call_ns=begin_ns, device_begin_ns=begin_ns, device_end_ns=end_ns)
    assert len(list(checks.unseen_lateness(rows, 0, 8))) == said
