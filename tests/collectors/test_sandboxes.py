"""A process that forbids itself system calls goes on as untraced; a filter it was born with stops nothing."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import NATIVE, Recording, compiled, plain_environment, record
from traced import run_traced

import stashtrace
from stashtrace.analysis.findings.rules.trust import trust
from stashtrace.schema.kinds import BatchPhase, IoOp

LOADER_JOB = """
    import torch
    from torch.utils.data import DataLoader

    if __name__ == "__main__":
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(torch.ones(8, 1), batch_size=2, num_workers=1):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with the rule of each allowed call that this machine's headers know."""
    text = (NATIVE / "container_calls.txt").read_text(encoding="utf-8")
    names = " ".join(line for line in text.splitlines() if not line.startswith("#")).split()
    headers = tmp_path_factory.mktemp("headers")
    rules = [f"#ifdef SYS_{name}\nALLOW(SYS_{name}),\n#endif\n" for name in names]
    (headers / "container_calls.h").write_text("".join(rules), encoding="utf-8")
    return compiled("sandbox_scenes.c", headers)


@pytest.mark.parametrize("way", ["strict", "filter", "seccomp", "prctl by number", "tsc", "vfork"])
def test_recording_ends_before_the_filter(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [scenes, way]
    plain = subprocess.run(
        command, env=plain_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (plain.returncode, plain.stdout) == (5, "went on\n")
    done = record(command, tmp_path / "run", exit_code=None)
    assert (done.exit_code, done.stdout, done.stderr) == (5, "went on\n", "")
    assert [row.result for row in done.of(tmp_path / "before") if row.result > 0] == [5, 7]
    assert any("sandbox" in part for part in trust(done.trace, {}).invisible)


def test_a_vfork_child_under_a_filter_leaves_its_parent_alone(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it executes starts without us; what the parent, in whose memory it was, starts later is traced."""
    monkeypatch.chdir(tmp_path)
    command = [scenes, "vfork execve"]
    kept = {"KEPT": "1"}
    plain = subprocess.run(command, env=plain_environment(kept), capture_output=True, text=True, check=False)
    assert (plain.returncode, plain.stdout) == (6, "kept\nkept\n")
    done = record(command, tmp_path / "run", env=kept, exit_code=None)
    assert (done.exit_code, done.stdout, done.stderr) == (6, "kept\nkept\n", "")
    assert [row.result for row in done.io if row.op == IoOp.WRITE] == [5]  # of one of the two


@pytest.mark.parametrize("way", ["execv", "execve", "posix_spawn", "fork"])
def test_a_program_under_a_filter_that_kills_lives_as_untraced(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Started without us by the process that has installed the filter: our start would end it."""
    monkeypatch.chdir(tmp_path)
    command = [scenes, f"killing {way}"]
    kept = {"KEPT": "1"}
    plain = subprocess.run(command, env=plain_environment(kept), capture_output=True, text=True, check=False)
    assert (plain.returncode, plain.stdout) == (6, "kept\n")
    done = record(command, tmp_path / "run", env=kept, exit_code=None)
    assert (done.exit_code, done.stdout, done.stderr) == (6, "kept\n", "")
    assert [row.result for row in done.of(tmp_path / "before") if row.result > 0] == [5]
    reported = trust(done.trace, {}).invisible
    assert "a process after entering a sandbox of its own, with what it starts from there" in reported


def rows_of_job(done: Recording, folder: Path) -> dict[str, list[str]]:
    return {
        name: [str(row) for row in done.of(folder / f"of {name}")]
        for name in ("the first thread", "a thread", "a child")
    }


@pytest.mark.parametrize(
    ("container", "refusal"),
    [
        pytest.param("container", errno.EPERM, id="container-EPERM"),
        pytest.param("old container", errno.ENOSYS, id="old container-ENOSYS"),
        pytest.param("container", errno.ENOSYS, id="container-ENOSYS", marks=pytest.mark.thorough),
        pytest.param("old container", errno.EPERM, id="old container-EPERM", marks=pytest.mark.thorough),
    ],
)
def test_container_records_fully(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch, refusal: int, container: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = record([scenes, container, str(refusal), scenes, "job"], tmp_path / "run")
    assert done.stderr == ""
    expected = ["open=0", *["write=1"] * 20_000, *[f"pread@{i}=1" for i in range(20_000)], "close=0"]
    for name, rows in rows_of_job(done, tmp_path).items():
        moved = [re.sub(r"^write@\d+", "write", row) for row in rows]
        assert [re.sub(r"^open=\d+", "open=0", row) for row in moved] == expected, name
    assert done.lost_rows() == 0


@pytest.mark.torch
def test_python_job_in_a_container_records_fully(tmp_path: Path, scenes: Path) -> None:
    pytest.importorskip("torch")
    python = (str(scenes), "container", str(errno.EPERM), sys.executable)
    run = run_traced(LOADER_JOB, tmp_path / "job", python=python)
    assert (run.exit_codes, run.stderr) == ([0], [""])
    trace = run.trace
    assert len(stashtrace.analyze(trace, "steps")) == 4
    fetched = [row for row in trace.batches.rows() if row["phase_code"] == BatchPhase.FETCH]
    assert [(row["worker_id"], row["batch_index"]) for row in fetched] == [(0, i) for i in range(4)]
    assert sum(row["lost_count"] for row in trace.losses.rows() if row["severity_code"] == 2) == 0
