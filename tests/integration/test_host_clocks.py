"""Real records of one machine, rewritten as if of two hosts with clocks that are off and drift: the truth is known."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from device import run_ranks
from forked_commands import environment
from ground_truth.hosts import Host, hosts
from ground_truth.machine import Missing
from measurements import Measurements
from other_boot import Found, as_other_boot, rank_of, true_miss_ns
from traced import ROOT, run_traced

import stashtrace
from stashtrace.format.reader import open_run

MS, US = 1_000_000, 1_000
#: Offset in ns and drift in ppb of the second host.
CLOCKS = [(9_700_000, 97_000), (-9_200_000, -83_000), (431_000, 55_000)]
SMALL = """
    import random, time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dice = random.Random(dist.get_rank())
    for _ in range(300):
        time.sleep(dice.random() * 0.004)
        dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()
"""


def shifted(run: Path, target: Path, offset_ns: int, drift_ppb: int) -> Path:
    """The run with the processes of rank 1 on another host."""
    shutil.copytree(run, target)
    for file in target.glob("*.stash"):
        if rank_of(file) == 1:
            as_other_boot(file, offset_ns=offset_ns, drift_ppb=drift_ppb)
    return target


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Measurements[Path]:
    pytest.importorskip("torch")
    return Measurements(lambda folder: run_traced(SMALL, folder, ranks=2).directory, tmp_path_factory.mktemp("gloo"))


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Measurements[tuple[Path, Path]]:
    """Run directories of two hosts, each in a separate network namespace."""
    pytest.importorskip("torch")
    return Measurements(in_namespaces, tmp_path_factory.mktemp("namespaces"))


def in_namespaces(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    try:
        with hosts(2) as made:
            processes = [start(folder, host, rank, made[0].address) for rank, host in enumerate(made)]
            try:
                assert [process.wait(240) for process in processes] == [0, 0], (folder / "1.err").read_text()
            finally:
                for process in processes:
                    process.kill()
    except Missing as why:
        pytest.skip(str(why))
    return folder / "run0", folder / "run1"


def start(folder: Path, host: Host, rank: int, master: str) -> subprocess.Popen[bytes]:
    variables = environment(
        GLOO_SOCKET_IFNAME=host.interface,
        MASTER_ADDR=master,
        MASTER_PORT="29544",
        RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        GROUP_WORLD_SIZE="2",
        OMP_NUM_THREADS="1",
    )
    job = [sys.executable, str(ROOT / "tests/ground_truth/small_ddp.py"), "100"]
    command = [sys.executable, "-m", "stashtrace", "run", "--out", f"run{rank}", "--", *job]
    with (folder / f"{rank}.err").open("wb") as errors:
        return subprocess.Popen(host.command(command), cwd=folder, env=variables, stdout=errors, stderr=errors)


def is_honest(found: Found) -> None:
    """How far off the other clock is said to be at most holds on any machine, however busy; how little that is, not."""
    assert found.miss_ns <= found.error_ns
    assert found.touch_miss_ns <= found.touch_error_ns


@pytest.mark.torch
@pytest.mark.parametrize(("offset_ns", "drift_ppb"), CLOCKS)
def test_collectives_alone_find_the_other_clock(
    gloo: Measurements[Path], tmp_path: Path, offset_ns: int, drift_ppb: int
) -> None:
    found = true_miss_ns(shifted(gloo.first, tmp_path / "moved", offset_ns, drift_ppb))
    assert found.method == "collectives"
    is_honest(found)


@pytest.mark.truth
@pytest.mark.torch
@pytest.mark.parametrize(("offset_ns", "drift_ppb"), CLOCKS)
def test_collectives_find_the_other_clock_sharply(
    gloo: Measurements[Path], tmp_path: Path, offset_ns: int, drift_ppb: int
) -> None:
    def right(measured: Path) -> None:
        run = shifted(measured, tmp_path / measured.parent.name, offset_ns, drift_ppb)
        assert true_miss_ns(run).touch_error_ns < 5 * MS  # a busy machine has no quick operations
        trace = stashtrace.load(run)
        assert len(trace.alignment) == 2
        row = next(r for r in trace.alignment.rows() if trace.text(r["method_code"]) == "collectives")
        assert abs(row["drift_ppb"] + drift_ppb) < 100_000
        ends = np.stack([np.sort(trace.collectives["end_ns"][trace.collectives["rank"] == r]) for r in (0, 1)])
        assert np.median(np.abs(ends[0] - ends[1])) < 1 * MS

    gloo.agree(right)


@pytest.mark.torch
def test_one_host_sends_nothing(gloo: Measurements[Path]) -> None:
    assert not any("clock_ping" in file.load(("clock_ping",)).records for file in open_run(gloo.first).processes)


@pytest.mark.thorough
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("offset_ns", "drift_ppb"), CLOCKS)
def test_ping_between_namespaces(
    namespaces: Measurements[tuple[Path, Path]], tmp_path: Path, offset_ns: int, drift_ppb: int
) -> None:
    found = true_miss_ns([shifted(run, tmp_path / run.name, offset_ns, drift_ppb) for run in namespaces.first])
    assert "ping" in found.method.split("+")
    is_honest(found)


@pytest.mark.truth
@pytest.mark.root
@pytest.mark.torch
@pytest.mark.parametrize(("offset_ns", "drift_ppb"), CLOCKS)
def test_ping_between_namespaces_is_sharp(
    namespaces: Measurements[tuple[Path, Path]], tmp_path: Path, offset_ns: int, drift_ppb: int
) -> None:
    def sharp(measured: tuple[Path, Path]) -> None:
        there = tmp_path / measured[0].parent.name
        found = true_miss_ns([shifted(run, there / run.name, offset_ns, drift_ppb) for run in measured])
        assert found.touch_miss_ns < 20 * US
        assert found.touch_error_ns < 100 * US  # under 20 us where the machine has cores to spare

    namespaces.agree(sharp)


def aligned_by_devices(source: str, folder: Path) -> list[Found]:
    """What is found of the other host's clock, for each of the clocks."""
    turns = "allreduce 4KB stream=2; sync stream=2; sleep {}ms; allreduce 4KB stream=2; sync stream=2; sleep {}ms"
    program = {
        rank: f"repeat 150 {{ {turns.format(*pauses)} }}\nsync device; sleep 100ms"
        for rank, pauses in enumerate([(1, 3), (3, 1)])
    }

    run = run_ranks(2, program, folder, env={"STASHTRACE_NCCL_SOURCE": source}).directory
    return [true_miss_ns(shifted(run, folder / str(i), *clock)) for i, clock in enumerate(CLOCKS)]


@pytest.mark.parametrize("source", ["plugin", "events"])
def test_devices_align_their_hosts(source: str, tmp_path: Path) -> None:
    for one in aligned_by_devices(source, tmp_path):
        assert one.method == "collectives"
        assert one.miss_ns <= one.error_ns


@pytest.mark.truth
@pytest.mark.parametrize("source", ["plugin", "events"])
def test_devices_align_their_hosts_sharply(source: str, tmp_path: Path) -> None:
    def sharp(found: list[Found]) -> None:
        assert max(one.touch_miss_ns for one in found) < 5 * US

    Measurements(lambda folder: aligned_by_devices(source, folder), tmp_path).agree(sharp)
