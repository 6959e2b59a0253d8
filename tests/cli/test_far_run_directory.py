"""A run directory on a file system that may stand still or die: recorded on a local disk; the exit code is kept."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer, environment

from stashtrace.format.reader import open_run
from stashtrace.record.directory import left_on_scratch

Run = Callable[..., Answer]
READ = "open('/etc/passwd', 'rb').read(500)"
#: The command line, as if the folders below the working directory were on a network file system.
ON_NFS = """
import sys
from stashtrace.record import run
run.far_file_system = lambda path: "nfs4"
run.near_folder = lambda: sys.argv[1] or None
from stashtrace.cli import main
sys.exit(main(sys.argv[2:]))
"""


def on_nfs(folder: Path, near: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line; ``near``: a folder on a local disk, empty if there is none."""
    command = [sys.executable, "-c", ON_NFS, near, *words]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize(("script", "code"), [(READ, 0), (f"{READ}; import os; os.kill(os.getpid(), 9)", 137)])
def test_records_are_made_on_a_local_disk_and_gathered(run: Run, tmp_path: Path, script: str, code: int) -> None:
    """Also those of a process that is killed."""
    near = tmp_path / "near"
    near.mkdir()
    where = f"import os; print(os.environ['STASHTRACE_DIR']); os.close(1); {script}"
    done = on_nfs(tmp_path, str(near), "run", "--out", "d", "--", sys.executable, "-S", "-c", where)
    assert done.returncode == code
    (line,) = [line for line in done.stderr.splitlines() if "nfs4" in line]
    records = done.stdout.strip()
    assert line == f"stashtrace: ./d is on nfs4: recorded in {records}, copied there at the end"
    assert records.startswith(f"{near}/stash-")
    assert list(near.iterdir()) == [], "nothing is left behind"
    trace = json.loads(run("info", "d", "--format", "json").out)
    assert trace["ranks"] == [0]
    assert json.loads((tmp_path / "d/run.json").read_text())["exit_code"] == code


def test_processes_that_lack_the_local_disk_write_into_the_run_directory(tmp_path: Path) -> None:
    """As on another host of the job, or in a container."""
    elsewhere = f'STASHTRACE_DIR=/nowhere/stash exec {shlex.quote(sys.executable)} -S -c "{READ}"'
    done = on_nfs(tmp_path, str(tmp_path), "run", "--out", "d", "--no-merge", "--", "sh", "-c", elsewhere)
    assert done.returncode == 0
    assert "recording is off" not in done.stderr
    programs = [str(process.metadata["argv"][0]) for process in open_run(tmp_path / "d").processes]
    assert sys.executable in programs


def test_without_a_local_disk_it_is_said_and_recorded_in_place(run: Run, tmp_path: Path) -> None:
    done = on_nfs(tmp_path, "", "run", "--out", "d", "--no-merge", "--", sys.executable, "-S", "-c", READ)
    assert done.returncode == 0
    assert "./d is on nfs4, and no local disk has room: if it stands still, so does the job" in done.stderr
    assert list((tmp_path / "d").glob("*.stash"))


def test_scratch_that_is_named_is_taken(tmp_path: Path) -> None:
    done = on_nfs(tmp_path, "/nowhere", "run", "--out", "d", "--scratch", "s", "--", sys.executable, "-S", "-c", READ)
    assert done.returncode == 0
    assert "nfs4" not in done.stderr


def test_records_of_a_launcher_that_was_killed_are_merged(run: Run, tmp_path: Path) -> None:
    words = ["run", "--out", "d", "--scratch", "s", "--", sys.executable, "-S", "-c", f"{READ}; input()"]
    with subprocess.Popen(
        [sys.executable, "-m", "stashtrace", *words],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        while not list(tmp_path.glob("s/*/*.ring")):
            time.sleep(0.02)
        assert left_on_scratch(tmp_path / "d") == [], "its launcher lives"
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        (records,) = tmp_path.glob("s/*")
        assert launcher.stdin is not None
        launcher.stdin.close()  # which ends the job that it left behind
        while left_on_scratch(tmp_path / "d") != [records]:
            time.sleep(0.02)
    merged = run("merge", "d")
    assert merged.code == 0, merged.err
    assert f"taking the records that were left in {records}" in merged.err
    assert json.loads(run("info", "d", "--format", "json").out)["ranks"] == [0]
    assert not records.exists()


def test_a_folder_that_a_run_json_names_is_not_believed(tmp_path: Path) -> None:
    """It must name the run itself, and belong to the user: what is in it is copied, and the folder goes."""
    run_dir, other = tmp_path / "d", tmp_path / "home"
    other.mkdir()
    run_dir.mkdir()
    from stashtrace.record.launchers import own_place

    facts = {"run_id": "a", "place": own_place(), "launcher_pid": 2**22 + 1, "records": str(other)}
    (run_dir / "run.json").write_text(json.dumps(facts))
    assert left_on_scratch(run_dir) == []
    (other / "run.json").write_text(json.dumps({"run_id": "a", "run_directory": str(tmp_path)}))
    assert left_on_scratch(run_dir) == []
    (other / "run.json").write_text(json.dumps({"run_id": "a", "run_directory": str(run_dir)}))
    assert left_on_scratch(run_dir) == [other]


@pytest.mark.parametrize("options", [(), ("--scratch", "s")])
def test_a_run_directory_that_dies_costs_neither_the_exit_code_nor_more_than_one_message(
    run: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A file in its place answers each call with an error, as a file system does whose server is gone."""
    script = f"import os, shutil; {READ}; shutil.rmtree('d'); open('d', 'w').close(); os._exit(7)"
    answer = run("run", "--out", "d", *options, "--no-merge", "--", sys.executable, "-S", "-c", script)
    assert answer.code == 7
    ours = [line for line in answer.err.splitlines() if "annot " in line or "error" in line.lower()]
    assert len([line for line in ours if "stashtrace[" not in line]) == 1, answer.err
    assert "Traceback" not in answer.err
    assert os.path.isfile(tmp_path / "d")
