"""Jobs on two hosts (network namespaces with separate names) that are followed: `run --live` under torchrun."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from example_job import stashtrace
from ground_truth.hosts import Host, hosts
from ground_truth.machine import Missing
from test_jobs_on_many_hosts import Job, torchrun

from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.live.state import Event, LiveState, read_events, read_states
from stashtrace.live.table import read_live, wide_rows
from stashtrace.loading.load import load_trace
from stashtrace.record.directory import HOSTS_FOLDER
from stashtrace.schema.groupby import GroupBy

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.root]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Host]]:
    pytest.importorskip("torch")
    try:
        with hosts(2) as made:
            yield made
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.thorough
def test_both_hosts_know_whom_they_waited_for(pair: list[Host], tmp_path: Path) -> None:
    """Each host accounts for its rank; the sums are those of the merged recording.

    A slow step of one rank, which both hosts see, has one line, and one window with the ranks of both.
    """
    reported = ["--on-trigger", "sh -c 'echo $STASHTRACE_TRIGGER_KIND $STASHTRACE_TRIGGER_STEP >> called'"]
    variables = {"LATE_RANK": "1", "SLOW_STEP": "150", "STAYS_UNTIL": str(tmp_path / "enough")}
    # So few steps that a follower which hears of the slow one at the end still holds it.
    job = Job(tmp_path, pair, torchrun(pair, 300), "shared/run", "--live", *reported, **variables)
    run, deadline = tmp_path / "shared/run", time.monotonic() + 150
    while time.monotonic() < deadline and not any(event.kind == "capture" for event in _events(run)):
        time.sleep(0.5)  # a host whose job has ended has no part in a window
    (tmp_path / "enough").touch()
    assert job.codes() == [0, 0], [job.said(host) for host in pair]
    live, states = read_live(run), read_states(run)
    assert [max(own["steps_count"] for own in state.ranks.values()) for state in states] == [300, 300]
    trace = load_trace(run)
    table = steps(trace)
    whole = wide_rows(stalls(trace, by="step", warmup=True), table, start=0, complete=np.ones(len(table), dtype=bool))
    assert len(live) == len(whole) == 600
    live = live.take(live["complete"] == 1)  # on a busy machine the last steps may be reported too late
    assert len(live) > 300
    at = GroupBy(whole["rank"], whole["step"]).row_of(live["rank"], live["step"])
    # Readings of the clocks that were let go of meanwhile move a moment by a few ns.
    for name in KIND_COLUMNS.values():
        assert np.abs(live[name] - whole[name][at]).max() <= 100, name
    assert (live["cause_rank"] == whole["cause_rank"][at]).mean() > 0.99
    waited = live.take((live["rank"] == 0) & (live["step"] % 10 == 0) & (live["step"] > 20))
    assert (waited["cause_rank"] == 1).mean() > 0.9
    assert not (run / HOSTS_FOLDER).exists(), "the merge removes what hosts reported to each other"
    slow = [event for event in read_events(run) if (event.kind, event.step) == ("slow_step", 150)]
    assert len(slow) == 1, slow
    assert (tmp_path / "called").read_text().splitlines().count("slow_step 150") == 1
    window = steps(load_trace(slow[0].window))
    of_ranks = [window["step"][window["rank"] == rank].tolist() for rank in (0, 1)]
    assert of_ranks[0] == of_ranks[1]
    assert {*range(130, 156)} <= set(of_ranks[0])
    sealed = [event for event in read_events(run) if event.kind == "capture" and event.window == slow[0].window]
    assert [" of ranks 0,1 are kept in " in event.text for event in sealed] == [True]


@pytest.mark.thorough
def test_a_window_of_both_hosts(pair: list[Host], tmp_path: Path) -> None:
    """Asked for from outside: one folder with the same steps of both ranks; a signal to one launcher does the same."""
    job = Job(tmp_path, pair, torchrun(pair, 1500), "shared/run", "--live", LATE_RANK="1")
    run, deadline = tmp_path / "shared/run", time.monotonic() + 100
    while time.monotonic() < deadline and sum(_last_step(state) > 200 for state in _states(run)) < 2:
        time.sleep(0.5)  # more than memory holds: the first ones are gone
    launcher = next(json.loads(path.read_text()) for path in run.glob("launch.node1.*.json"))
    os.kill(launcher["launcher_pid"], signal.SIGUSR2)
    answer = stashtrace("capture", "shared/run", "--steps", "20", cwd=tmp_path)
    assert job.codes() == [0, 0], [job.said(host) for host in pair]
    assert answer.returncode == 0, answer.stderr
    assert " of ranks 0,1 are kept in " in " ".join(answer.stderr.split())
    windows = list((run / "windows").glob("*-asked*"))
    assert Path(answer.stdout.strip()).name in {path.name for path in windows}
    assert len(windows) in (1, 2), "what the signal asked for may still be open, and is made longer then"
    whole = steps(load_trace(run))
    for window in windows:
        table = steps(load_trace(window))
        of_ranks = [sorted(table["step"][table["rank"] == rank].tolist()) for rank in (0, 1)]
        assert of_ranks[0] == of_ranks[1]
        assert of_ranks[0] == [*range(of_ranks[0][0], of_ranks[0][-1] + 1)]
        assert of_ranks[0][0] > 0
        assert len(of_ranks[0]) > 5
        at = GroupBy(whole["rank"], whole["step"]).row_of(table["rank"], table["step"])
        lengths, others_ns = (one["end_ns"] - one["begin_ns"] for one in (table, whole.take(at)))
        assert np.abs(lengths - others_ns).max() <= 100


@pytest.mark.thorough
def test_a_host_that_is_run_without_live(pair: list[Host], tmp_path: Path) -> None:
    """The other one says that it cannot know for whom its rank waits."""
    command = torchrun(pair, 1500)
    job = Job(tmp_path, pair[:1], command, "shared/run", "--live")
    other = Job(tmp_path, pair[1:], command, "shared/run")
    note = "nothing is known of rank 1 of 2, which may run on node1 without --live: waits for them have no cause"
    run, deadline = tmp_path / "shared/run", time.monotonic() + 100
    while time.monotonic() < deadline and not any(note in state.notes for state in _states(run)):
        time.sleep(0.5)
    shown = stashtrace("live", "shared/run", "--once", cwd=tmp_path)
    assert job.codes() == other.codes() == [0]
    assert shown.returncode == 0
    assert "nothing is known of rank 1 of 2" in " ".join(shown.stdout.split())


@pytest.mark.thorough
def test_hosts_with_separate_directories(pair: list[Host], tmp_path: Path) -> None:
    job = Job(tmp_path, pair, torchrun(pair, 800), "run-{}", "--live")
    assert job.codes() == [0, 0], [job.said(host) for host in pair]
    for rank, host in enumerate(pair):
        run = tmp_path / f"run-{host.name}"
        (state,) = read_states(run)
        assert state.notes == [
            f"this host sees rank {rank} of 2: other hosts do not record into {run}, "
            "so it cannot say for which of their ranks the ranks of this host wait"
        ]
        assert not (run / HOSTS_FOLDER).exists()


@pytest.mark.thorough
def test_an_idle_run_is_captured_on_both_hosts(pair: list[Host], tmp_path: Path) -> None:
    """A request wakes the ranks of both; the window has the same steps of each, with the numbers of the job."""
    job = Job(tmp_path, pair, torchrun(pair, 20_000), "shared/run", "--idle", "--no-merge")
    for host in pair:
        job.await_words(host, "trains")
    run, deadline = tmp_path / "shared/run", time.monotonic() + 60
    while time.monotonic() < deadline and len(_states(run)) < 2:
        time.sleep(0.2)
    # A busy host wakes dozens of these short steps after the other: both keep enough to have 20 in common.
    answer = stashtrace("capture", "shared/run", "--steps", "500", cwd=tmp_path)
    for launcher in job.launchers:
        launcher.terminate()
    job.codes()
    assert answer.returncode == 0, answer.stderr
    table = steps(load_trace(answer.stdout.strip()))
    numbers = [table["step"][table["rank"] == rank].tolist() for rank in (0, 1)]
    assert numbers[0] == numbers[1] == [*range(min(numbers[0]), max(numbers[0]) + 1)]
    assert len(numbers[0]) >= 20
    assert min(numbers[0]) > 5, "the steps before the request count"


def _last_step(state: LiveState) -> int:
    return max((own["last_step"] for own in state.ranks.values()), default=-1)


def _events(run: Path) -> list[Event]:
    return read_events(run) if run.exists() else []


def _states(run: Path) -> list[LiveState]:
    return read_states(run) if run.exists() else []
