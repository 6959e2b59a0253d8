"""Workers that end late, that are killed, and ranks that are killed: said of them, and where the time went."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forked_commands import environment
from installed import needs_torch
from traced import PYTHON, TracedRun, run_traced

import stashtrace
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.registry import analyze
from stashtrace.schema.kinds import BatchPhase, ProcessRole

pytestmark = pytest.mark.torch
needs_torch()

LOOP = """
    import json, os, signal, sys, time
    import torch
    from torch import nn
    from torch.utils import data
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)

    class Rows(Dataset):
        def __len__(self): return 16
        def __getitem__(self, i): return torch.full((4,), float(i))

    def end_late(worker_id):
        import multiprocessing.util
        if PLAIN:  # torch's own handler of SIGTERM in workers leaves with 0
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        multiprocessing.util.Finalize(None, time.sleep, args=(LAST_S,), exitpriority=-5)

    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(batches):
        for batch in batches:
            net(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
#: Between two epochs the job itself ends the iterator, as Lightning does: no batch is asked for then.
LATE_ENDS = """
    PLAIN, LAST_S = False, 0.4
    loader = DataLoader(Rows(), 4, num_workers=2, worker_init_fn=end_late)
    spent = []
    for epoch in range(3):
        try:
            next(iter(()))
        except StopIteration:  # as where an epoch is over: the workers are forked while it is handled
            iterator = iter(loader)
        train(next(iterator) for _ in range(3))
        begin = time.monotonic_ns()
        iterator._shutdown_workers()
        spent.append(time.monotonic_ns() - begin)
        train([torch.ones(4, 4)] * 2)
    print(json.dumps(spent))
"""
TOO_LATE = """
    PLAIN, LAST_S = True, 60.0
    data._utils.MP_STATUS_CHECK_INTERVAL = 0.3
    train(DataLoader(Rows(), 4, num_workers=1, worker_init_fn=end_late))
    train([torch.ones(4, 4)])
"""
KILLED = """
    class Deadly(Rows):
        def __getitem__(self, i):
            if i == 9:
                # Memory of a batch is handed over by its worker when the main process opens the batch. If the worker
                # is gone by then, torch fails with the error of a connection.
                while not os.path.exists("opened"):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(i)
    def opened(batches):
        for batch in batches:
            open("opened", "w").close()
            yield batch
    try:
        train(opened(DataLoader(Deadly(), 4, num_workers=2)))
    except RuntimeError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(LOOP + LATE_ENDS, tmp_path_factory.mktemp("late") / "job")


def test_the_wait_for_workers_to_end_is_recorded(late: TracedRun) -> None:
    rows = late.trace.batches.take(late.trace.batches["phase_code"] == BatchPhase.WORKERS_END)
    spent = late.results()[0]
    assert len(rows) == 3
    assert len(set(rows["loader_id"].tolist())) == 3
    # Nothing but a fraction of the call lies outside the row, which lies inside the call.
    for took, ours in zip(spent, (rows["end_ns"] - rows["begin_ns"]).tolist(), strict=True):
        assert 400_000_000 <= ours <= took


def test_what_was_handled_when_workers_began_is_no_end_of_them(late: TracedRun) -> None:
    assert (late.trace.processes["role_code"] == ProcessRole.WORKER).sum() == 6
    assert [row["exception"] for row in analyze(late.trace, "endings").rows() if row["exception"]] == []


def test_it_is_hand_off_and_has_a_name(late: TracedRun) -> None:
    trace = late.trace
    batches = trace.batches.take(trace.batches["phase_code"] == BatchPhase.WORKERS_END)
    ending = TimeSet.of(batches["begin_ns"], batches["end_ns"])
    parts = analyze(trace, "stall_intervals")
    inside = ending.pieces(parts["begin_ns"], parts["end_ns"])
    assert set(parts["kind"][inside[2]].tolist()) == {"handoff"}


def test_workers_that_end_in_time_are_not_named(late: TracedRun) -> None:
    assert len(analyze(late.trace, "killed")) == 0


@pytest.mark.thorough
def test_a_worker_that_the_loader_had_to_end(tmp_path: Path) -> None:
    run = run_traced(LOOP + TOO_LATE, tmp_path / "job")
    (row,) = analyze(run.trace, "killed").rows()
    assert (row["rank"], row["worker_id"], row["signal"], row["sender"]) == (0, 0, "SIGTERM", "loader")
    assert ("torch_dataloader", "child_killed", 1) not in run.losses()


def test_a_worker_that_was_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    run = run_traced(LOOP + KILLED, tmp_path / "job")
    assert "DataLoader worker" in run.results()[0]
    (row,) = analyze(run.trace, "killed").rows()
    processes = run.trace.processes
    own = processes.take(processes["process_id"] == row["process_id"])
    assert (row["rank"], row["worker_id"], row["signal"], row["sender"]) == (0, 0, "SIGKILL", "unknown")
    assert own["worker_id"].tolist() == [0]
    assert own["pid"].tolist() == [row["pid"]]
    assert own["end_ns"].tolist() == [row["end_ns"]]
    assert ("torch_dataloader", "child_killed", 1) in run.losses()


def test_a_rank_that_was_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, signal, torch\n"
        "torch.nn.Linear(2, 2)(torch.ones(2, 2))\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "stashtrace", "run", "--out", "run", "--", *command],
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1, done.stderr[-3000:]
    rows = list(analyze(stashtrace.load(tmp_path / "run"), "killed").rows())
    assert {(row["rank"], row["signal"]) for row in rows if row["sender"] == "unknown"} == {(1, "SIGKILL")}
    assert {(row["rank"], row["signal"]) for row in rows if row["sender"] == "launcher"} <= {(0, "SIGTERM")}


SPAWNED = """
    import os, signal
    import torch
    import torch.multiprocessing as mp

    def rank(index):
        if index == 1:
            os.kill(os.getpid(), signal.SIGABRT)

    if __name__ == "__main__":
        try:
            mp.spawn(rank, nprocs=2)
        except mp.ProcessExitedException as error:
            print(error.exit_code)
"""


@pytest.mark.thorough
def test_a_spawned_process_that_was_killed(tmp_path: Path) -> None:
    run = run_traced(SPAWNED, tmp_path / "job")
    assert run.stdout == ["-6\n"]
    assert [row["signal"] for row in analyze(run.trace, "killed").rows()] == ["SIGABRT"]
