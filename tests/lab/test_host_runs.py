"""Runs of a characterization on this host and another, and what is said of those that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stashtrace.errors import CaptureError
from stashtrace.lab.characterize.run_on_hosts import (
    HostTask,
    RunFailedError,
    by_ssh,
    from_host,
    here,
    last_words,
    run_tasks,
)
from stashtrace.loading.load import load_trace

ROOT = Path(__file__).resolve().parents[2]

LAUNCHER = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  exitcode  : 2 (pid: 28846)
============================================================
stashtrace: the command ended with exit code 1
"""

SUMMARY = """E1122 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Failures:
[1]:
  traceback : Signal 15 (SIGTERM) received by PID 8
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  traceback : {}
============================================================
stashtrace: the command ended with exit code 1
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("python: can't open file 'no.py': [Errno 2]\n" + LAUNCHER, "python: can't open file 'no.py': [Errno 2]"),
        ("  File 'a.py', line 1\nValueError: odd\n" + LAUNCHER, "ValueError: odd"),
        ("it needs two ranks\n" + SUMMARY.format("To enable traceback see: https://pytorch.org"), "it needs two ranks"),
        ("step 3\n" + SUMMARY.format("Signal 9 (SIGKILL) received by PID 7"), "Signal 9 (SIGKILL) received by PID 7"),
        ("it went wrong\n====\n\nstashtrace: not merged\n", "it went wrong"),
        ("", ""),
    ],
)
def test_the_line_that_says_most(tmp_path: Path, log: str, expected: str) -> None:
    path = tmp_path / "step1-0.log"
    path.write_text(log)
    assert last_words(path) == expected


def test_without_a_log(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none.log") == ""


@pytest.fixture
def ssh(tmp_path: Path) -> list[str]:
    """A host that is reached like any other, and keeps its files below `there` where this one has `here`."""
    script = tmp_path / "ssh"
    script.write_text(
        f"""#!/bin/sh
[ "$1" = other ] || {{ echo "Could not resolve hostname $1" >&2; exit 255; }}
shift
exec sh -c "$(printf %s "$*" | sed 's,{tmp_path}/here,{tmp_path}/there,g')"
"""
    )
    script.chmod(0o755)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    return [str(script)]


def test_what_another_host_recorded_comes_home(tmp_path: Path, ssh: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = tmp_path / "here" / "run"
    job = (sys.executable, "-c", "import os; print('said on', os.environ['NAME'], os.getcwd())")
    tasks = [
        HostTask(job, {"NAME": "one", "RANK": "0", "WORLD_SIZE": "2"}, here, "one"),
        HostTask(
            job,
            {"NAME": "the other", "RANK": "1", "WORLD_SIZE": "2"},
            by_ssh("other", ssh),
            "other",
            bring_home=from_host("other", ssh),
            connected=True,
        ),
    ]
    run_tasks(tasks, run, 3, 180.0, name="two", on_wait=lambda: None)
    log = run.with_suffix(".log").read_text()
    assert f"said on one {tmp_path}/here" in log
    assert f"said on the other {tmp_path}/there" in log
    there = {path.name for path in (tmp_path / "there" / "run").glob("*.stash")}
    assert there
    assert there <= {path.name for path in run.glob("*.stash")}
    assert set(load_trace(run).processes["rank"].tolist()) == {0, 1}


def test_a_host_that_cannot_be_reached(tmp_path: Path, ssh: list[str]) -> None:
    home = from_host("nowhere", ssh)
    tasks = [HostTask((sys.executable, "-c", ""), {}, by_ssh("nowhere", ssh), "nowhere", bring_home=home)]
    with pytest.raises(RunFailedError) as raised:
        run_tasks(tasks, tmp_path / "run", 3, 180.0, name="one", on_wait=lambda: None)
    assert str(raised.value) == "the command ended with exit code 255: Could not resolve hostname nowhere"
    with pytest.raises(CaptureError, match="cannot copy run from nowhere"):
        from_host("nowhere", ssh)(tmp_path / "run")


def test_a_run_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tasks = [HostTask((sys.executable, "-c", "import time; time.sleep(100)"), {}, here)]
    with pytest.raises(RunFailedError) as raised:
        run_tasks(tasks, tmp_path / "run", 3, 3.0, name="long", on_wait=lambda: None)
    assert str(raised.value) == "stopped after 3 s without having made its steps (see run.log)"


SLEEPING = """import os, pathlib, time
pathlib.Path({file!r}).write_text(str(os.getpid()))
time.sleep(100)
"""


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def sleeping(tmp_path: Path) -> tuple[tuple[str, ...], Path]:
    file = tmp_path / "pid"
    return (sys.executable, "-c", SLEEPING.format(file=str(file))), file


def test_a_run_on_another_host_that_takes_too_long_ends_there(
    tmp_path: Path, ssh: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ssh: no signal gets there, only the end of the connection."""
    deaf = Path(ssh[0])
    deaf.write_text(deaf.read_text().replace("exec sh -c", "exec setsid --wait sh -c"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command, file = sleeping(tmp_path)
    tasks = [HostTask(command, {}, by_ssh("other", ssh), "other", connected=True)]
    for limit_s in (3.0, 20.0, 120.0):  # on a busy machine the job has hardly begun after three seconds
        with pytest.raises(RunFailedError, match="stopped after"):
            run_tasks(tasks, tmp_path / f"run{limit_s}", 3, limit_s, name="long", on_wait=lambda: time.sleep(0.1))
        if file.exists():
            break
    assert file.exists(), (tmp_path / f"run{limit_s}.log").read_text()
    assert wait_until(lambda: not is_running(int(file.read_text())))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_who_ends_us_ends_the_runs(tmp_path: Path, number: int) -> None:
    command, file = sleeping(tmp_path)
    code = (
        "from pathlib import Path; from stashtrace.lab.characterize.run_on_hosts import HostTask, here, run_tasks;"
        f"run_tasks([HostTask({command!r}, {{}}, here)], Path({str(tmp_path / 'run')!r}), 5, 60.0, name='one',"
        " on_wait=lambda: None)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE) as ours:
        assert wait_until(lambda: file.exists() and file.read_text() != "")
        ours.send_signal(number)
        said = ours.communicate(timeout=60)[1].decode()
    assert "KeyboardInterrupt" in said
    assert wait_until(lambda: not is_running(int(file.read_text())))
