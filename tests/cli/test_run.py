"""stashtrace run from end to end on small real programs: recorded, merged, summed up, whatever becomes of the job."""

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
from command_line import Answer, environment, stashtrace

Run = Callable[..., Answer]
#: The interpreter as a word of a shell script.
PYTHON = shlex.quote(sys.executable)
#: A job that says when it has read, and a shell that waits for that.
BEGUN = "import time; open('begun', 'w').close(); "
AWAIT = "until [ -e begun ]; do sleep 0.02; done"
READER = "import sys\nfor i in range(2000): open('input.txt').read()\nprint('data', flush=True)\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text("x" * 100)
    (tmp_path / "job.py").write_text(READER)
    return tmp_path


def records(path: Path) -> dict[str, int]:
    answer = stashtrace("info", path, "--format", "json")
    assert answer.code == 0, answer.err
    found: dict[str, int] = json.loads(answer.out)["records"]
    return found


def test_a_run_leaves_a_merged_directory(run: Run, job: Path) -> None:
    answer = run("run", "--out", "out", "--", sys.executable, "job.py")
    assert (answer.code, answer.out) == (0, "data\n"), "nothing of ours on the job's stdout"
    assert "\nstashtrace  " in answer.err
    assert "stashtrace view ./out" in answer.err
    names = {p.suffix for p in (job / "out").iterdir()}
    assert names == {".json", ".stash", ".gz", ".txt"}, "rings are gone, timeline and summary are there"
    assert (job / "out/summary.txt").read_text() == answer.err.lstrip("\n")
    assert records(job / "out")["posix_io"] >= 6000


def test_an_output_that_is_no_terminal_sees_no_bar_and_no_colour(run: Run, job: Path) -> None:
    answer = run("run", "--", sys.executable, "job.py")
    assert "\x1b" not in answer.err
    assert "\r" not in answer.err


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "ended by SIGKILL (9); what it recorded is kept",
        ),
        ("import os; os._exit(9)", 9, "ended with exit code 9"),
        ("raise SystemExit(3)", 3, "ended with exit code 3"),
        ("import ctypes; ctypes.string_at(0)", 139, "ended by SIGSEGV (11)"),
    ],
)
def test_what_a_dying_job_recorded_is_merged(run: Run, job: Path, end: str, code: int, words: str) -> None:
    (job / "job.py").write_text(READER + end)
    answer = run("run", "--out", "out", "--", sys.executable, "job.py")
    assert answer.code == code
    assert words in answer.err
    assert list((job / "out").glob("*.ring")) == []
    assert records(job / "out")["posix_io"] >= 6000


def test_a_worker_that_outlives_its_launcher_is_waited_for(run: Run, job: Path) -> None:
    (job / "job.py").write_text(READER + BEGUN + "time.sleep(1); open('late.txt', 'w').write('late')\n")
    answer = run("run", "--out", "out", "--", "sh", "-c", f"{PYTHON} job.py & {AWAIT}; exit 4")
    assert answer.code == 4
    assert (job / "late.txt").exists(), "we returned before the straggler ended"
    assert list((job / "out").glob("*.ring")) == []


def test_a_daemon_is_not_waited_for_longer_than_the_grace_time(run: Run, job: Path) -> None:
    (job / "job.py").write_text(READER + BEGUN + "time.sleep(600)\n")
    begin = time.monotonic()
    script = f"{PYTHON} job.py >/dev/null 2>&1 & echo $!; {AWAIT}"
    answer = run("run", "--out", "out", "--grace", "0.5", "--", "sh", "-c", script)
    try:
        assert time.monotonic() - begin < 300, "we returned before the daemon ended"
        assert "1 process" in answer.err
        assert "needs `stashtrace merge ./out`" in answer.err
        assert len(list((job / "out").glob("*.ring"))) == 1, "the file of a living process is left alone"
    finally:
        os.kill(int(answer.out.split()[0]), signal.SIGKILL)
    again = run("merge", "out")
    assert again.code == 0
    assert records(job / "out")["posix_io"] >= 6000


#: In a separate session, with an `exec` just when the command ends: its file is not there at that moment.
DAEMON = "(setsid sh -c 'sleep {seconds}; exec \"$0\" job.py' {python} >/dev/null 2>&1 &)"


def test_a_daemon_that_has_recorded_nothing_yet_is_waited_for(run: Run, job: Path) -> None:
    (job / "job.py").write_text(READER + "open('late.txt', 'w').write('late')\n")
    script = DAEMON.format(seconds=2, python=PYTHON)
    answer = run("run", "--out", "out", "--grace", "60", "--", "sh", "-c", script)
    assert answer.code == 0
    assert (job / "late.txt").exists(), "we returned before the daemon ended"
    assert list((job / "out").glob("*.ring")) == []
    assert records(job / "out")["posix_io"] >= 6000
    assert "outlived_by" not in json.loads((job / "out/run.json").read_text())


def test_a_daemon_that_outlives_the_grace_time_is_said_and_stands_in_the_run(run: Run, job: Path) -> None:
    script = DAEMON.format(seconds=30, python=PYTHON)
    answer = run("run", "--out", "out", "--grace", "0.5", "--", "sh", "-c", script)
    left = [int(pid) for pid in json.loads((job / "out/run.json").read_text())["outlived_by"].split(", ")]
    for pid in left:
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    assert len(left) == 1
    assert f"1 process ({left[0]}) of the job still run" in answer.err


def test_no_merge_then_merge(run: Run, job: Path) -> None:
    first = run("run", "--out", "out", "--no-merge", "--", sys.executable, "job.py")
    assert first.err == "stashtrace: the run is not merged; `stashtrace merge ./out` merges it\n"
    assert not (job / "out/timeline.pftrace.gz").exists()
    merged = run("merge", "out")
    assert (merged.code, merged.out) == (0, "")
    assert (job / "out/timeline.pftrace.gz").exists()
    assert run("merge", "out").code == 0, "a second merge changes nothing"


@pytest.mark.root
def test_a_disk_that_fills_up_costs_neither_job_nor_summary(run: Run, job: Path) -> None:
    small = job / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", small], capture_output=True).returncode:
        pytest.skip("no permission to mount a tmpfs")
    try:
        fill = (
            "out = open('small/filler', 'wb', buffering=0)\n"
            "try:\n    while True: out.write(b'x' * 65536)\nexcept OSError: pass\n"
        )
        (job / "job.py").write_text(READER + fill + READER + "raise SystemExit(5)")
        answer = run("run", "--out", "small/out", "--", sys.executable, "job.py")
        assert (answer.code, answer.out) == (5, "data\ndata\n")
        assert "I/O calls of 1 process" in answer.err, "the summary is there"
        assert "the raw file is kept" in answer.err
        assert "timeline.pftrace.gz" in answer.err
        assert "hint: `stashtrace export perfetto ./small/out -o FILE` writes it elsewhere" in answer.err
        (small / "filler").unlink()
        assert run("merge", "small/out").code == 0
        assert records(small / "out")["posix_io"] >= 6000
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_command_that_cannot_be_recorded_says_so(run: Run, job: Path) -> None:
    answer = run("run", "--out", "out", "--", "env", "-i", "/bin/true")
    assert answer.code == 0
    if "nothing was recorded" in answer.err:  # env itself may have been
        assert "stashtrace doctor -- env" in answer.err


def test_an_interrupt_of_the_merge_says_how_to_go_on(job: Path) -> None:
    script = (
        "import signal, os\nfrom stashtrace.cli import main, merging\n"
        "def merge(*words, **options):\n    os.kill(os.getpid(), signal.SIGINT)\n    raise SystemExit(99)\n"
        "merging.merge_and_report = merge\n"
        "raise SystemExit(main(['run', '--out', 'out', '--', 'sh', '-c', 'cat input.txt; exit 5']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=job, env=environment(), capture_output=True, text=True)
    assert done.returncode == 5
    assert "merge interrupted, nothing is lost; `stashtrace merge ./out` starts it again" in done.stderr


def test_colour_and_bar_on_a_terminal(job: Path) -> None:
    def on_a_terminal(**extra: str) -> str:
        words = f"{PYTHON} -m stashtrace run -- {PYTHON} job.py"
        done = subprocess.run(
            ["script", "-qec", words, "/dev/null"], cwd=job, env=environment(TERM="xterm", **extra), capture_output=True
        )
        assert done.returncode == 0
        return done.stdout.decode()

    try:
        shown = on_a_terminal()
    except FileNotFoundError:
        pytest.skip("no `script` here to make a terminal")
    assert "merging" in shown
    assert "\r\x1b[K" in shown
    assert "\x1b[3" not in on_a_terminal(NO_COLOR="1")


def test_status_before_anything_was_recorded(run: Run, job: Path) -> None:
    answer = run("run", "--out", "out", "--no-merge", "--", sys.executable, "-S", "-c", "print('untraced')")
    for file in [*(job / "out").glob("*.stash"), *(job / "out").glob("*.ring")]:
        file.unlink()
    assert answer.code == 0
    facts = json.loads((job / "out/run.json").read_text())
    kept = {name: value for name, value in facts.items() if not name.startswith("end_") and name != "exit_code"}
    (job / "out/run.json").write_text(json.dumps(kept | {"launcher_pid": os.getpid()}))
    shown = run("status", "out")
    assert (shown.code, shown.err) == (0, "")
    assert "running, no step has ended yet" in shown.out
    assert "nothing was recorded yet" in shown.out


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("--deeper", "nonsense"), "--deeper 'nonsense' is not known", "kernels, stacks, or kernels,stacks"),
        (("--deeper", ""), "--deeper '' is not known", "kernels, stacks, or kernels,stacks"),
        (("--deeper-budget", "0"), "--deeper-budget 0 is no part of an hour", "for example --deeper-budget 0.5"),
        (("--deeper-budget", "-1"), "--deeper-budget -1 is no part of an hour", "for example --deeper-budget 0.5"),
        (("--deeper-budget", "nan"), "--deeper-budget nan is no part of an hour", "for example --deeper-budget 0.5"),
        (("--deeper-budget", "abc"), "--deeper-budget abc is not a number", "for example --deeper-budget 10"),
        (("--until-step", "6.5"), "--until-step 6.5 is not a whole number", "for example --until-step 10"),
        (
            ("--until-step", "3", "--steps", "5:9"),
            "--until-step 3 ends the job before step 5",
            "--until-step 6, or more",
        ),
        (("--grace", "-3"), "--grace -3 is not a length of time", "for example --grace 1.5"),
        (
            ("--grace",),
            "--grace needs a value",
            "--grace SECONDS: time to wait for processes that outlive the command (default: 10)",
        ),
        (("--kernls",), "no option --kernls", "did you mean --kernels?"),
    ],
)
def test_bad_values_are_refused_with_a_hint(
    run: Run, tmp_path: Path, words: tuple[str, ...], said: str, hint: str
) -> None:
    answer = run("run", "--out", "out", *words, "--", "true")
    assert answer.code == 2
    error, empty, last = answer.err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert (empty, last) == ("", f"hint: {hint}")
    assert not (tmp_path / "out").exists()


def test_paths_in_hints_can_be_pasted(run: Run, job: Path) -> None:
    """Also those with a space in them."""
    answer = run("run", "--no-merge", "--out", "my run", "--", sys.executable, "-c", "open('/etc/hostname').read()")
    assert "`stashtrace merge './my run'` merges it" in answer.err
    answer = run("merge", "my run")
    assert "stashtrace info './my run'" in answer.err
    assert "stashtrace view './my run'" in run("summary", "./my run").out
