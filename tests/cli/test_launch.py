"""run_command: the job behaves as it would without us, and its directory is fit to hold it."""

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
from command_line import Answer, environment, started
from ports import free_port

import stashtrace
from stashtrace.errors import CaptureError, StashtraceError
from stashtrace.record.directory import prepare_directory
from stashtrace.record.run import run_command

Run = Callable[..., Answer]
RUN = [sys.executable, "-m", "stashtrace", "run", "--out"]


def traced(run: Run, *words: object, **options: object) -> Answer:
    """Without the merge: these tests are about the launch alone."""
    return run("run", "--out", "out", "--no-merge", "--", *words, **options)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_exit_code_is_the_jobs(run: Run, tmp_path: Path, script: str, code: int) -> None:
    assert traced(run, "sh", "-c", script).code == code
    facts = json.loads((tmp_path / "out/run.json").read_text())
    assert facts["exit_code"] == code
    assert facts["signal"] == (code - 128 if code > 128 else 0)
    assert facts["end_monotonic_ns"] > facts["begin_monotonic_ns"]
    assert facts["command"] == ["sh", "-c", script]


def test_stdin_and_stdout_are_the_jobs(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RUN, tmp_path / "o", "--no-merge", "--", "tr", "a-z", "A-Z"],
        input="every byte\n",
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "EVERY BYTE\n"


def test_run_file_is_there_while_the_job_runs(run: Run) -> None:
    answer = traced(run, "cat", "out/run.json")
    facts = json.loads(answer.out)
    assert facts["format"] == 1
    assert {"run_id", "host", "boot_id", "collectors", "launcher_pid", "stashtrace_version"} <= set(facts)
    assert "exit_code" not in facts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])  # the others: test_signals.py
def test_signals_are_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import signal, sys, time\n"
        "for s in (1, 2, 3, 10, 15): signal.signal(s, lambda n, f: (print('got', n, flush=True), sys.exit(40 + n)))\n"
        "print('ready', flush=True)\n"
        # Many short sleeps: a signal that comes between a look for signals and one sleep is only seen after it.
        "for _ in range(600): time.sleep(.05)\n"
    )
    process = started("run", "--out", tmp_path / "o", "--no-merge", "--", sys.executable, "-S", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=100)
    assert out == f"got {int(number)}\n", "once, not twice"
    assert process.returncode == 40 + number


def test_stop_and_continue(tmp_path: Path) -> None:
    words = ["run", "--out", tmp_path / "o", "--no-merge", "--", "sh", "-c", "echo $$; read x; exit 5"]
    # A separate group, with its parent in the same session: the kernel does not stop orphaned groups.
    process = started(*words, stdin=subprocess.PIPE, options={"preexec_fn": os.setpgrp})
    assert process.stdout is not None
    try:
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGTSTP)
        for pid in (process.pid, child):
            assert await_state(pid, "T"), f"{pid} did not stop"
        process.send_signal(signal.SIGCONT)
        assert await_state(child, "S"), "the job was not woken"
        process.communicate("go\n", timeout=100)
        assert process.returncode == 5
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def await_state(pid: int, letter: str) -> bool:
    for _ in range(3000):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == letter:
            return True
        time.sleep(0.02)
    return False


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As under nohup: the job must inherit it, and we must not take it."""
    ours = shlex.join([*RUN, str(tmp_path / "o"), "--no-merge"])
    words = f"trap '' HUP; {ours} -- sh -c 'kill -HUP $$; exit 6'"
    assert subprocess.run(["sh", "-c", words], env=environment(), capture_output=True).returncode == 6


def test_the_job_has_a_default_sigpipe(run: Run) -> None:
    """Python ignores SIGPIPE for itself; a job that inherits that behaves differently."""
    assert traced(run, "sh", "-c", "kill -PIPE $$; exit 3").code == 128 + signal.SIGPIPE


BAD_COMMANDS = [
    (
        ["no-such-program"],
        2,
        "error: command not found: no-such-program\n\n"
        "hint: no folder of PATH has it; a program elsewhere is named with its path\n",
    ),
    (["./missing.sh"], 2, "error: command not found: ./missing.sh\n\nhint: it is looked for in {here}\n"),
    (["./plian.txt"], 2, "error: command not found: ./plian.txt\n\nhint: did you mean `plain.txt`?\n"),
    (["./plain.txt"], 3, "error: ./plain.txt is not executable\n\nhint: `chmod +x ./plain.txt`\n"),
    (
        ["./plain.py"],
        3,
        "error: ./plain.py is not executable\n\nhint: did you mean `stashtrace run -- python ./plain.py`?\n",
    ),
    (
        ["plain.py"],
        2,
        "error: command not found: plain.py\n\nhint: did you mean `stashtrace run -- python plain.py`?\n",
    ),
    (["./"], 3, "error: ./ is a directory, not a command\n\nhint: name the program in it\n"),
]


@pytest.mark.parametrize(("words", "code", "error"), BAD_COMMANDS)
def test_commands_that_cannot_run(run: Run, tmp_path: Path, words: list[str], code: int, error: str) -> None:
    (tmp_path / "plain.txt").write_text("hello")
    (tmp_path / "plain.py").write_text("print()")
    assert traced(run, *words) == Answer(code, "", error.format(here=tmp_path))
    assert not (tmp_path / "out").exists(), "nothing was started, so nothing is left"


def test_a_script_without_interpreter_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bare").write_text("exit 0\n")
    (tmp_path / "bare").chmod(0o755)
    answer = traced(run, "./bare")
    assert (answer.code, answer.err.splitlines()[0]) == (3, "error: cannot start ./bare: exec format error")


def test_a_directory_with_another_run(run: Run, tmp_path: Path) -> None:
    assert traced(run, "true").code == 0
    before = (tmp_path / "out/run.json").read_bytes()
    answer = traced(run, "true")
    assert answer.code == 3
    assert answer.err.startswith("error: run directory out already holds a run, begun 20")
    assert "hint: choose another with `--out DIR`" in answer.err
    assert (tmp_path / "out/run.json").read_bytes() == before


def test_a_directory_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run("run", "--out", "file/below", "--", "true")
    assert answer.code == 3
    assert answer.err.startswith("error: cannot write into run directory file/below: not a directory\n\nhint: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CaptureError, match="permission denied"):
        prepare_directory(str(tmp_path / "x"))


@pytest.mark.root
def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", small], capture_output=True).returncode:
        pytest.skip("no permission to mount a tmpfs")
    try:
        nearly = run("run", "--out", "small/a", "--", "true")
        (small / "filler").write_bytes(b"x" * 240_000)
        full = run("run", "--out", "small/b", "--", "true")
        assert list(small.rglob("run.json")) == []
    finally:
        subprocess.run(["umount", small], check=True)
    assert (nearly.code, full.code) == (3, 3)
    assert nearly.err.startswith("error: run directory small/a has only 0.2 MiB of free space\n\nhint: ")
    assert full.err.startswith("error: run directory small/b is full\n\nhint: ")


def test_default_directory_is_named_after_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = time.strptime("2026-04-12 08:09:10", "%Y-%m-%d %H:%M:%S")
    assert prepare_directory(None, now=now).name == "stash-0412-080910"
    assert prepare_directory(None, now=now).name == "stash-0412-080910-2"


@pytest.mark.parametrize("option", [["--collectors", "cupti"], ["--steps", "9:3"]])
def test_bad_options_leave_nothing_behind(run: Run, tmp_path: Path, option: list[str]) -> None:
    assert run("run", *option, "--out", "out", "--", "true").code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(StashtraceError, match=r"nothere\.so"):
        run_command(["true"], out=str(tmp_path / "o"), library=str(tmp_path / "nothere.so"))
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_cannot_be_opened_costs_no_run(run: Run, tmp_path: Path) -> None:
    answer = run("run", "--out", "nosuch://bucket/run", "--", "touch", "ran")
    assert answer.code == 2
    assert answer.err.startswith("error: nosuch://bucket/run ")
    assert list(tmp_path.iterdir()) == [], "the command was not started"


def test_a_second_interrupt_skips_the_merge(tmp_path: Path) -> None:
    script = (
        "import signal, time\ngot = []\n"
        "signal.signal(2, lambda *a: (got.append(2), print('got', len(got), flush=True)))\nprint('ready', flush=True)\n"
        "while len(got) < 2: time.sleep(.02)\n"
    )
    process = started("run", "--out", tmp_path / "o", "--", sys.executable, "-S", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in (1, 2):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == f"got {number}\n", "passed on"
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0
    assert err == f"stashtrace: the run is not merged; `stashtrace merge {tmp_path / 'o'}` merges it\n"


@pytest.mark.thorough
@pytest.mark.torch
def test_two_nodes_of_torchrun_on_one_machine_share_a_directory(tmp_path: Path) -> None:
    """The second launcher was refused, and the first one's agent waited for it until its rendezvous gave up."""
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "value = torch.ones(1)\n"
        "dist.all_reduce(value)\n"
        "print(int(value))\n"
        "dist.destroy_process_group()\n",
        encoding="utf-8",
    )
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    nodes = [
        started(
            *("run", "--out", "run", "--", *agent, "--node-rank", node, *meeting, script),
            cwd=tmp_path,
            options={"start_new_session": True},
            OMP_NUM_THREADS="1",
        )
        for node in range(2)
    ]
    try:
        said = [node.communicate(timeout=180) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
    assert [node.returncode for node in nodes] == [0, 0], said
    assert [out for out, _ in said] == ["2\n", "2\n"]
    trace = stashtrace.load(tmp_path / "run")
    assert trace.ranks.tolist() == [0, 1]


#: The command ends while the launcher does not wait: the other thread takes the signal of its end, and it is gone.
REAPS_LATE = """
import sys, threading, time
from stashtrace.record import run
reap = run._Watch._reap
def slow(watch):
    reap(watch)
    time.sleep(0.3)
run._Watch._reap = slow
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(run.run_command(["sh", "-c", "sleep 0.1; exit 3"], out=sys.argv[1]).exit_code)
"""


def test_a_command_that_ends_while_nobody_waits(tmp_path: Path) -> None:
    """The process has other threads, as numpy and pyarrow start them."""
    command = [sys.executable, "-c", REAPS_LATE, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
