"""`run --idle` of every kind of job: a capture has the steps that were asked for, complete and with their numbers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from device import NEEDED, fake_environment
from example_job import ENVIRONMENT, ROOT, command_of_ranks, stashtrace

from stashtrace.analysis.steps.steps import steps
from stashtrace.live.state import read_events, read_states
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import BatchPhase, Phase, Severity
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: Beginning of each job: when it ends, and what each rank writes down of a step.
HEAD = """
import json, os, sys, time
rank = int(os.environ.get('RANK', '0'))
lines = open(f'steps-{rank}', 'w')
begin = time.monotonic()
def ends():
    return os.path.exists('enough') or time.monotonic() - begin > 300
def note(step, **more):
    lines.write(json.dumps({'step': step, 'at_ns': time.monotonic_ns(), **more}) + chr(10))
    lines.flush()
"""

LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 30
    def __getitem__(self, index):
        time.sleep(0.01)
        with open('data', 'rb') as file: return torch.ones(4) * len(file.read())
if __name__ == '__main__':
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(Data(), 1, num_workers=2, persistent_workers=bool(int(sys.argv[1])))
    step = 0
    while not ends():
        for batch in loader:
            note(step)
            model(batch).sum().backward()
            optimizer.step()
            step += 1
            if ends(): break
"""

#: Rank 1 comes later than rank 0 by most of a step, so that they may begin to record with different steps.
DISTRIBUTED = """
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
group = dist.group.WORLD
plain = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
stop, step, count = torch.zeros(1), 0, 0
while True:
    time.sleep(0.02)
    note(step, count=count)
    model(torch.ones(2, 32)).sum().backward()
    optimizer.step()
    count = group._get_sequence_number_for_group()
    step += 1
    time.sleep(0.03 * rank)
    stop.fill_(float(ends()))
    dist.all_reduce(stop)
    optimizer.zero_grad()
    if stop.item(): break
dist.destroy_process_group()
"""
DDP = "model = torch.nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=0.005)"
FSDP = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh('cpu', (2,))
for layer in plain: fully_shard(layer, mesh=mesh)
model = fully_shard(plain, mesh=mesh)
"""


class IdleJob:
    """A job of an idle run in a folder."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process
        self.run = folder / "run"

    def await_steps(self, count: int) -> None:
        """Wait until rank 0 has made ``count`` steps."""
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if list(self.run.glob("live-*.json")) and len(self.noted(0)) >= count:
                return
            time.sleep(0.2)
        pytest.fail("the job makes no steps: " + (self.folder / "said").read_text())

    def noted(self, rank: int) -> list[dict[str, int]]:
        """What a rank wrote of each step."""
        path = self.folder / f"steps-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def capture(self, count: int) -> Path:
        answer = stashtrace("capture", "run", "--steps", str(count), cwd=self.folder)
        assert answer.returncode == 0, answer.stderr
        return Path(answer.stdout.strip())

    def end(self) -> None:
        (self.folder / "enough").touch()
        assert self.process.wait(timeout=100) == 0


@contextlib.contextmanager
def idle_job(folder: Path, code: str, *arguments: str, ranks: int = 1, compiles: bool = False) -> Iterator[IdleJob]:
    """Run a script idle; it is ended at the end."""
    (folder / "data").write_bytes(bytes(1 << 12))
    (folder / "job.py").write_text(HEAD + code)
    job = command_of_ranks(ranks, "job.py", *arguments) if ranks > 1 else [sys.executable, "job.py", *arguments]
    command = [sys.executable, "-m", "stashtrace", "run", "--idle", "--no-merge", "--out", "run", "--", *job]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
    if compiles:
        environment["PYTHONPATH"] = str(ROOT)
    with (
        open(folder / "said", "w") as said,
        subprocess.Popen(command, cwd=folder, env=environment, stderr=said, text=True) as process,
    ):
        try:
            yield IdleJob(folder, process)
        finally:
            (folder / "enough").touch()


def checked_steps(job: IdleJob, trace: Trace, asked: int, ranks: int = 1) -> Table:
    """The steps of a window: one after another, as many as asked, each where the job says that it was."""
    table = steps(trace)
    numbers = [table["step"][table["rank"] == rank].tolist() for rank in range(ranks)]
    first, last = int(table["step"].min()), int(table["step"].max())
    assert numbers == [[*range(first, last + 1)]] * ranks
    assert last - first + 1 >= asked
    named = trace.metadata["key_code"] == trace.strings.find("origin_monotonic_ns")
    zero = int(trace.text(int(trace.metadata["value_code"][named][-1])))
    for rank in range(ranks):
        own = table.take(table["rank"] == rank)
        at = {line["step"]: line["at_ns"] - zero for line in job.noted(rank)}
        earliest_ns = 0  # a step begins with its forward, which may come late after the note on a busy machine
        for row in own.rows():
            assert earliest_ns <= at[row["step"]] <= row["end_ns"], row
            earliest_ns = row["begin_ns"]
    assert not (trace.losses["severity_code"] > Severity.INFO).any(), [*trace.losses.rows()]
    return table


def check_phases(trace: Trace, table: Table) -> None:
    """Each step has its forward, its backward and its update."""
    for row in table.rows():
        own = trace.phases.take(trace.phases["process_id"] == row["process_id"])
        inside = (own["begin_ns"] >= row["begin_ns"]) & (own["end_ns"] <= row["end_ns"])
        kinds = own["phase_code"][inside].tolist()
        assert sorted(kinds) == sorted([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]), row


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [0, 1])
def test_workers_of_a_loader(tmp_path: Path, persistent: int) -> None:
    """They started before the request, some epochs ago if they stay, or in the window."""
    with idle_job(tmp_path, LOADER, str(persistent)) as job:
        job.await_steps(100)
        window = job.capture(50)
        job.end()
    trace = load_trace(window)
    table = checked_steps(job, trace, 50)
    check_phases(trace, table)
    batches = trace.batches
    made = batches.take(batches["phase_code"] == BatchPhase.FETCH)
    waits = batches.take((batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0))
    makers = {(row["loader_id"], row["batch_index"]): row["worker_id"] for row in made.rows()}
    begins = table["begin_ns"]
    # Two workers make two batches each in advance; those of the first steps were made before.
    late = waits.take((waits["begin_ns"] >= begins[6]) & (waits["end_ns"] <= table["end_ns"].max()))
    assert len(late) >= 40
    for row in late.rows():
        assert makers[row["loader_id"], row["batch_index"]] == row["batch_index"] % 2, row
    paths = [trace.text(code) for code in trace.io["path_code"].tolist()]
    assert sum(path.endswith("/data") for path in paths) >= 40


@pytest.mark.parametrize("wrap", [DDP, pytest.param(FSDP, marks=pytest.mark.thorough)], ids=["ddp", "fsdp"])
def test_collectives_have_the_numbers_of_the_group(tmp_path: Path, wrap: str) -> None:
    """Also in a second window, for which the kernels of the operators were woken again."""
    with idle_job(tmp_path, DISTRIBUTED.format(wrap=wrap), ranks=2, compiles=wrap == FSDP) as job:  # it needs Dynamo
        job.await_steps(20)
        windows = [job.capture(10)]
        time.sleep(3)
        windows.append(job.capture(10))
        job.end()
    seen = []
    for window in windows:
        trace = load_trace(window)
        table = checked_steps(job, trace, 10, ranks=2)
        seen.append(int(table["step"].min()))
        for rank in (0, 1):
            counts = {line["step"]: line["count"] for line in job.noted(rank)}
            own = trace.collectives.take(trace.collectives["rank"] == rank)
            rows = [row for row in table.take(table["rank"] == rank).rows() if row["step"] + 1 in counts]
            assert len(rows) > 5
            for row in rows[1:]:  # the first began with its forward, and what came before it was not recorded
                number = row["step"]
                inside = (own["call_ns"] >= row["begin_ns"]) & (own["call_ns"] < row["end_ns"])
                assert sorted(own["sequence"][inside].tolist()) == [*range(counts[number], counts[number + 1])], row
    assert seen[0] < seen[1]
    run = load_trace(tmp_path / "run")
    assert not any("not_seen" in run.text(code) for code in run.losses["name_code"].tolist())


PLAIN = """
import stashtrace
step = 0
while not ends():
    note(step)
    with open('data', 'rb') as file: file.read()
    time.sleep(0.04)
    stashtrace.step()
    step += 1
"""


STUCK = PLAIN + "    while rank == 1 and step == 30 and not ends(): time.sleep(1)\n"


def test_a_request_while_a_window_is_open(tmp_path: Path) -> None:
    """It makes the window longer; both are answered with it."""
    with idle_job(tmp_path, PLAIN) as job:
        job.await_steps(20)
        words = [sys.executable, "-m", "stashtrace", "capture", "run", "--steps"]
        with contextlib.ExitStack() as stack:
            asked = []
            for count in ("60", "90"):
                asked.append(
                    stack.enter_context(
                        subprocess.Popen(
                            [*words, count], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
                        )
                    )
                )
                time.sleep(1.5)
            answers = [process.communicate(timeout=100)[0].strip() for process in asked]
        job.end()
    assert answers[0] == answers[1] != ""
    checked_steps(job, load_trace(answers[0]), 90)


def test_a_job_that_ends_in_a_window(tmp_path: Path) -> None:
    """The window has the steps that came."""
    with idle_job(tmp_path, PLAIN) as job:
        job.await_steps(20)
        words = [sys.executable, "-m", "stashtrace", "capture", "run", "--steps", "100000"]
        with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as asked:
            # A busy machine takes many steps until the command has asked.
            job.await_steps(len(job.noted(0)) + 400)
            job.end()
            window, _ = asked.communicate(timeout=100)
    table = checked_steps(job, load_trace(window.strip()), 5)
    assert table["step"].max() >= len(job.noted(0)) - 2


def test_a_signal_to_the_launcher(tmp_path: Path) -> None:
    with idle_job(tmp_path, PLAIN) as job:
        job.await_steps(20)
        os.kill(job.process.pid, signal.SIGUSR2)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not _windows(job):
            time.sleep(0.3)
        job.end()
    (window,) = _windows(job)
    checked_steps(job, load_trace(window), 5)


@pytest.mark.thorough
def test_a_stuck_job_says_what_is_not_seen(tmp_path: Path) -> None:
    """The state says that an idle run sees no stuck rank; a request is given up, and names the rank that stands."""
    with idle_job(tmp_path, STUCK, ranks=2) as job:
        job.await_steps(80)
        (state,) = read_states(job.run)
        assert any("stuck or lost ranks are not noticed" in note for note in state.notes)
        assert not state.stuck
        answer = stashtrace("capture", "run", "--steps", "5", cwd=tmp_path)
        job.end()
    assert answer.returncode == 3
    assert "no step of all ranks has begun for 1 min; rank 1 may be stuck" in " ".join(answer.stderr.split())


def _windows(job: IdleJob) -> list[str]:
    return [event.window for event in read_events(job.run) if event.kind == "capture" and event.window]


def test_a_device_is_seen_from_the_window_on(tmp_path: Path) -> None:
    """On a played device, whose context was made while nothing was recorded: each step has its time on the device."""
    variables = fake_environment(tmp_path / "doubles", "devices 1", libraries=NEEDED)
    script = str(ROOT / "tests" / "ground_truth" / "device_loader_job.py")
    words = ["run", "--idle", "--no-merge", "--out", "run", "--", sys.executable, script, "0", "20", "10", "1500"]
    command = [sys.executable, "-m", "stashtrace", *words, str(tmp_path / "worker.txt")]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT | variables, stdout=subprocess.DEVNULL) as process:
        worker, deadline = tmp_path / "worker.txt", time.monotonic() + 100
        while time.monotonic() < deadline and not (worker.exists() and worker.read_text().count("\n") > 50):
            time.sleep(0.2)
        answer = stashtrace("capture", "run", "--steps", "20", cwd=tmp_path)
        process.terminate()
    assert answer.returncode == 0, answer.stderr
    trace = load_trace(answer.stdout.strip())
    table = steps(trace)
    assert len(table) >= 20
    assert set(table["clock_code"].tolist()) == {1}, "by marks on the device"
    assert not (trace.losses["severity_code"] > Severity.INFO).any(), [*trace.losses.rows()]
