"""Steps that are recorded deeper while a job runs: as somebody asks, after a trigger, within their budget."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from example_job import ENVIRONMENT, stashtrace
from played_cupti import PRELUDE, build_libraries

from stashtrace.analysis.devices.breakdown import breakdown
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import UsageError
from stashtrace.live.state import read_events, read_states
from stashtrace.loading.load import load_trace
from stashtrace.schema.trace import Trace

#: Two ranks of which each step launches a kernel with the number of the step; while CUPTI has a subscriber, a step
#: takes longer. Rank 1 is two steps behind. Each writes how often CUPTI was given back, and ends when asked to.
LOOP = """
import os, subprocess, sys
if 'RANK' not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.orig_argv[1:]],
             env={**os.environ, 'RANK': str(r), 'WORLD_SIZE': '2', 'LOCAL_RANK': str(r)}) for r in (0, 1)]
    sys.exit(max(rank.wait() for rank in ranks))
PRELUDE
import stashtrace
rank, held, given_back = int(os.environ['RANK']), 0, 0
time.sleep(0.1 * rank)
begin = time.monotonic()
for step in range(100000):
    launch(f"step{step}")
    before, held = held, cupti.fake_cupti_state() & 1
    given_back += before > held
    open(f"state{rank}", "w").write(f"{held} {given_back}")
    time.sleep(0.05 + 0.15 * held)
    if os.path.exists('slow') and rank == 1:
        time.sleep(1)
        os.remove('slow')
    stashtrace.step()
    if os.path.exists('enough') or time.monotonic() - begin > 180: break
"""


@dataclass
class Job:
    """What a job left behind: its folder, the answers to `capture`, and what its launcher said."""

    folder: Path
    answers: list[subprocess.CompletedProcess[str]]
    said: str

    def windows(self) -> list[Path]:
        """The window of each request, all of which were answered."""
        for answer in self.answers:
            assert answer.returncode == 0, answer.stderr
        return [Path(answer.stdout.strip()) for answer in self.answers]

    def texts(self, kind: str = "deeper") -> list[str]:
        return [event.text for event in read_events(self.folder / "run") if event.kind == kind]


def run_job(folder: Path, libraries: Path, options: Sequence[str], captures: Sequence[Sequence[str]]) -> Job:
    """Run the loop under `stashtrace run`, and ask for windows one after the other; "slow" makes a step slow."""
    words = [sys.executable, "-m", "stashtrace", "run", "--live", *options, "--out", "run", "--"]
    command = [*words, sys.executable, "-c", LOOP.replace("PRELUDE", PRELUDE)]
    variables = {**ENVIRONMENT, "LD_LIBRARY_PATH": str(libraries), "FAKE_SCRIPT": os.devnull}
    answers = []
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as job:
        try:
            wait_for(lambda: newest_step(folder / "run") >= 0)
            for words in captures:
                if words[0] == "slow":
                    wait_for(lambda: newest_step(folder / "run") > 150)  # it is known what is usual
                    (folder / "slow").touch()
                    wait_for(lambda: any(event.kind == "deeper" for event in read_events(folder / "run")))
                    wait_for(lambda: any(event.kind == "capture" for event in read_events(folder / "run")))
                else:
                    answers.append(stashtrace("capture", "run", *words, cwd=folder))
        finally:
            (folder / "enough").touch()
        assert job.stderr is not None
        said = job.stderr.read()
    assert job.returncode == 0, said
    return Job(folder, answers, said)


def newest_step(run: Path) -> int:
    """The last step that has closed, as the follower says; -1 before."""
    return max((int(own["last_step"]) for state in read_states(run) for own in state.ranks.values()), default=-1)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("it did not come")


def kernels_of(trace: Trace, rank: int) -> list[int]:
    """Numbers of the steps of which a rank has kernels."""
    table = trace.kernels.take(trace.kernels["rank"] == rank).sort_by("begin_ns")
    return [int(trace.text(code).removeprefix("step")) for code in table["name_code"].tolist()]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, libraries: Path) -> Job:
    """A job that was asked twice for some steps deeper."""
    captures = [["--kernels", "--steps", "3"], ["--kernels", "--steps", "2"]]
    return run_job(tmp_path_factory.mktemp("asked"), libraries, [], captures)


@pytest.mark.parametrize(("which", "count"), [(0, 3), (1, 2)])
def test_each_rank_records_the_kernels_of_as_many_steps_as_were_asked_for(asked: Job, which: int, count: int) -> None:
    trace = load_trace(asked.windows()[which])
    for rank in (0, 1):
        found = kernels_of(trace, rank)[-count:]
        assert found == list(range(found[0], found[0] + count))
        assert found[0] - 1 not in kernels_of(trace, rank)
        own = steps(trace)
        own = own.take((own["rank"] == rank) & np.isin(own["step"], found))
        assert len(own) == count, "the window holds these steps"


def test_cupti_is_given_back_each_time(asked: Job) -> None:
    assert [(asked.folder / f"state{rank}").read_text() for rank in (0, 1)] == ["0 2", "0 2"]


def test_what_it_cost_is_said(asked: Job) -> None:
    """Each deeper step takes 0.15 s longer, and so do those in which the last records are awaited."""
    first, second = asked.texts()
    assert first.startswith("recorded kernels of steps ")
    assert first.endswith("; 6 pieces of work on devices")
    assert second.endswith("; 4 pieces of work on devices")
    assert "of the 36.0 s that this may cost in an hour are left" in first
    costs = [event.cost_ns for event in read_events(asked.folder / "run") if event.kind == "deeper"]
    assert costs[0] > 3 * 0.1e9
    assert f"stashtrace: {first}" in asked.said


def test_deeper_steps_raise_no_alarm(asked: Job) -> None:
    """They are four times as long as the others, through us. Those of a busy machine may be slow as well."""
    ranges = [text.split("steps ")[1].split(":")[0].split(" to ") for text in asked.texts()]
    deep = {step for first, last in ranges for step in range(int(first) - 1, int(last) + 1)}
    slow = [event.step for event in read_events(asked.folder / "run") if event.kind == "slow_step"]
    assert not deep & set(slow)


def test_the_whole_run_is_not_taken_for_one_recording_of_kernels(asked: Job) -> None:
    """Between both no kernel was recorded, which is no idle device."""
    trace = load_trace(asked.folder / "run")
    with pytest.raises(UsageError, match="several times"):
        breakdown(trace)
    assert len(breakdown(trace, by="step"))


@pytest.mark.thorough
def test_the_budget_ends_deeper_steps_and_refuses_more(tmp_path: Path, libraries: Path) -> None:
    """0.36 s an hour: two steps or three, not fifty, and then no more."""
    captures = [["--kernels", "--steps", "50"], ["--kernels", "--steps", "50"]]
    job = run_job(tmp_path, libraries, ["--deeper-budget", "0.01"], captures)
    trace = load_trace(job.windows()[0])
    assert all(1 <= len(kernels_of(trace, rank)) < 40 for rank in (0, 1))
    first, second = job.texts()
    assert "; 0 ns of the 360 ms that this may cost in an hour are left" in first
    assert second.startswith("the next steps are recorded as usual: of the 360 ms that they may cost in an hour 0 ")
    assert len(load_trace(job.windows()[1]).kernels) == len(trace.kernels), "those of before alone"


@pytest.mark.thorough
def test_the_steps_after_a_trigger(tmp_path: Path, libraries: Path) -> None:
    job = run_job(tmp_path, libraries, ["--deeper", "kernels"], [["slow"]])
    (window,) = (job.folder / "run/windows").iterdir()
    trace = load_trace(window)
    for rank in (0, 1):
        assert len(kernels_of(trace, rank)) == 5
        assert steps(trace)["step"].max() >= max(kernels_of(trace, rank))


def test_without_a_device_the_window_is_sealed_and_the_reason_said(tmp_path: Path) -> None:
    loop = (
        "import time, os, stashtrace\nwhile not os.path.exists('enough'):\n    time.sleep(0.05)\n    stashtrace.step()"
    )
    words = [sys.executable, "-m", "stashtrace", "run", "--live", "--out", "run", "--", sys.executable, "-c", loop]
    with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as job:
        try:
            wait_for(lambda: newest_step(tmp_path / "run") >= 0)
            answer = stashtrace("capture", "run", "--kernels", "--steps", "2", cwd=tmp_path)
        finally:
            (tmp_path / "enough").touch()
        assert job.stderr is not None
        job.stderr.read()
    assert answer.returncode == 0, answer.stderr
    (text,) = [event.text for event in read_events(tmp_path / "run") if event.kind == "deeper"]
    assert text.startswith("recorded kernels of no step; ")
    assert "rank 0 recorded no kernels: " in text
