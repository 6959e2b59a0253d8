"""``stashtrace check``: exit codes, baselines, what CI systems read, alternate recording; ``diff`` of several runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from command_line import environment

from stashtrace.cli import main
from stashtrace.cli.commands.check import parser
from stashtrace.cli.parsing import split_at_dashes
from stashtrace.lab.synth import SyntheticJob, write

Check = Callable[..., tuple[int, str, str]]
#: A job whose steps spread, and whose runs differ, about as those behind the allowance do.
STEPS, SPREAD, RUN_SPREAD = 60, 0.03, 0.007


def record(folder: str | Path, seed: int = 0, **changes: Any) -> str:
    """A made-up run of two ranks."""
    settings = {"ranks": 2, "workers": 1, "steps": STEPS, "calls_per_batch": 0, "seed": seed, "spread_ratio": SPREAD}
    write(folder, SyntheticJob(**{**settings, "run_spread_ratio": RUN_SPREAD, **changes}))
    return str(folder)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """``check(*words)`` in an empty folder, outside of any CI: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: object) -> tuple[int, str, str]:
        code = main(["check", *map(str, words)])
        answer = capsys.readouterr()
        return code, answer.out, answer.err

    return call


def test_of_20_pairs_of_equal_runs_none_is_worse(check: Check) -> None:
    codes = []
    for pair in range(20):
        sides = [record(f"run-{pair}-{side}", seed=2 * pair + side) for side in (0, 1)]
        codes.append(check(sides[1], "--against", sides[0], "--fail-if", "step+0%")[0])
    assert codes.count(1) <= 1
    assert set(codes) <= {0, 1, 5}


def test_a_slow_down_fails(check: Check) -> None:
    """The step is 115 ms; 15 ms more are 13 %."""
    before, after = record("old", 1), record("new", 2, backward_ns=65_000_000)
    code, out, _ = check(after, "--against", before)
    assert code == 1
    assert out.startswith("WORSE\njobs: nothing that was recorded differs")
    assert "worse beyond doubt: the step went from 11" in out
    assert "step+5% allows 5 %" in out
    code, out, _ = check(after, "--against", before, "--fail-if", "step+30%", "--fail-if", "compute+8%")
    assert code == 1
    assert "compute+8% allows 8 %" in out
    assert check(after, "--against", before, "--fail-if", "step+30%", "--fail-if", "interconnect+5%")[0] == 0


def test_a_late_rank_is_named(check: Check) -> None:
    before, after = record("old", 1, spread_ratio=0.005), record("new", 1, late_rank=1, late_ns=40_000_000)
    code, out, _ = check(after, "--against", before, "--fail-if", "straggler+10%", "--fail-if", "compute+10%")
    assert code == 1
    straggler, compute = (next(line for line in out.splitlines() if f"{k}+10% allows" in line) for k in WORDS)
    assert "most on rank 0, by 40" in straggler
    assert "most on rank 1, by 40" in compute


WORDS = ("late", "compute")


@pytest.mark.parametrize("stdout", ["| true", ">&-"])
def test_the_verdict_and_its_files_outlive_the_reader(check: Check, tmp_path: Path, stdout: str) -> None:
    """A build that shortens the answer (``| head``) must not pass for it; the slow reader here has ended first."""
    before, after = record("old", 1), record("new", 2, backward_ns=65_000_000)
    command = shlex.join(["-m", "stashtrace", "check", after, "--against", before, "--junit", "told.xml"])
    script = f"{shlex.quote(sys.executable)} {command} {stdout}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert ElementTree.parse(tmp_path / "told.xml").getroot().get("failures") == "1"


def test_few_steps_are_inconclusive(check: Check) -> None:
    before, after = record("old", 1, steps=12, spread_ratio=0.0), record("new", 1, steps=80, spread_ratio=0.0)
    code, out, _ = check(after, "--against", before)
    assert code == 5
    assert out.startswith("INCONCLUSIVE")
    assert "but a run has only 7 steps, too few to show how steps spread: record 10 or more" in out


class TestWhatWouldDecide:
    """Equal runs of steps that spread too much for an answer, in folders that a shell does not take as they are."""

    def inconclusive(self, tmp_path: Path, before: list[str], after: list[str]) -> list[str]:
        runs = [record("run a", 1, spread_ratio=0.25), record("run b", 2, spread_ratio=0.25)]
        for run, command, folder in zip(runs, (before, after), ("old 'dir", "new dir"), strict=True):
            (tmp_path / folder).mkdir(exist_ok=True)
            self.change(Path(run), command=command, working_directory=str(tmp_path / folder))
        return runs

    def change(self, run: Path, **facts: Any) -> None:
        path = run / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))

    def pasted(self, out: str) -> tuple[str, list[str]]:
        """What a shell makes of the command: the folder it runs in, and its words."""
        lines = out.splitlines()
        command = lines[lines.index("to decide it:") + 1]
        shell = f'stashtrace() {{ printf "%s\\n" "$PWD" "$@"; }}\n{command}'
        done = subprocess.run(["bash", "-c", shell], check=True, capture_output=True, text=True)
        folder, *words = done.stdout.splitlines()
        return folder, words

    def test_is_a_command_that_a_shell_takes(self, check: Check, tmp_path: Path) -> None:
        old, new = ["python", "train it.py", "--lr", "$x"], ["python", "train it.py", "--name", "a;b"]
        before, after = self.inconclusive(tmp_path, old, new)
        code, out, _ = check(after, "--against", before, "--fail-if", "step+5%", "--fail-if", "compute+5%")
        assert code == 5
        folder, words = self.pasted(out)
        assert folder == str(tmp_path / "new dir")
        rounds = int(words[words.index("--rerun") + 1])
        assert f"{rounds} alternating runs a side would separate" in out
        assert words[words.index("--before") + 1] == shlex.join(old)
        assert words[words.index("--before-dir") + 1] == str(tmp_path / "old 'dir")
        assert words[words.index("--") + 1 :] == new
        given, command = split_at_dashes(words[1:])
        assert (parser().read(given).fail_if, command) == (["step+5%", "compute+5%"], new)

    def test_is_in_a_saved_baseline_and_in_json(self, check: Check, tmp_path: Path) -> None:
        before, after = self.inconclusive(tmp_path, ["python", "a.py"], ["python", "a.py"])
        assert check(before, "--save-baseline", "main")[0] == 0
        code, out, _ = check(after, "--against", "main", "--format", "json")
        assert code == 5
        command = json.loads(out)["command_that_would_decide"]
        assert shlex.split(command)[:2] == ["cd", str(tmp_path / "new dir")]
        assert f"--before-dir {shlex.quote(str(tmp_path) + '/old ' + chr(39) + 'dir')} " in command

    def test_needs_the_version_before_in_a_separate_folder(self, check: Check, tmp_path: Path) -> None:
        runs = self.inconclusive(tmp_path, ["python", "a.py"], ["python", "a.py"])
        for run in runs:
            self.change(Path(run), working_directory=str(tmp_path))
        code, out, _ = check(runs[1], "--against", runs[0], "--allowance", "1.5", "--allow", "batch")
        assert code == 5
        where = "to decide it, with the version before in ../before (git worktree add ../before COMMIT):"
        command = out.splitlines()[out.splitlines().index(where) + 1]
        assert re.fullmatch(
            r"  stashtrace check --rerun \d+ --before-dir \.\./before --fail-if step\+5% --allow batch --allowance 1\.5"
            r" -- python a\.py",
            command,
        )

    def test_is_not_given_where_both_folders_would_run_one_script(self, check: Check, tmp_path: Path) -> None:
        """A script that is named by its absolute path is the same one, in whichever folder it is started."""
        command = ["python", str(tmp_path / "train.py"), "--data", "/data"]
        before, after = self.inconclusive(tmp_path, command, command)
        code, out, _ = check(after, "--against", before)
        assert (code, "would separate" in out, "to decide it" in out) == (5, True, False)
        before, after = self.inconclusive(tmp_path, ["python", "/old/train.py"], ["python", "/new/train.py"])
        assert "to decide it" in check(after, "--against", before)[1]

    @pytest.mark.parametrize("argument", ["<scrubbed>", "a\x1b[2Jb"])
    def test_is_not_given_where_it_could_not_be_run(self, check: Check, tmp_path: Path, argument: str) -> None:
        before, after = self.inconclusive(tmp_path, ["python", "a.py"], ["python", "a.py", argument])
        code, out, _ = check(after, "--against", before)
        assert code == 5
        assert "would separate" in out
        assert "to decide it:" not in out


def test_json(check: Check) -> None:
    code, out, _ = check(record("new", 2), "--against", record("old", 1), "--format", "json")
    content = json.loads(out)
    assert content["exit_code"] == code
    assert content["conditions"][0]["condition"] == "step+5%"
    assert content["before"] == {**content["before"], "name": "old", "runs": 1}


def test_baselines_by_name_file_and_folder(check: Check, tmp_path: Path) -> None:
    old, new = record("old", 1), record("new", 2)
    code, out, err = check(old, "--save-baseline", "main")
    assert (code, out) == (0, "")
    assert err.startswith("saved .stashtrace/baselines/main.json: 1 run, ")
    file = tmp_path / ".stashtrace/baselines/main.json"
    assert file.stat().st_size < 40_000
    by_run = json.loads(check(new, "--against", old, "--format", "json")[1])
    for name in ("main", str(file)):
        by_baseline = json.loads(check(new, "--against", name, "--format", "json")[1])
        assert by_baseline["conditions"] == by_run["conditions"]
        assert by_baseline["before"]["facts"] == by_run["before"]["facts"]
    assert check(new, "--against", "main", "--baselines", "elsewhere")[0] == 4


def test_a_baseline_comes_before_a_folder_of_its_name(check: Check) -> None:
    old, other = record("old", 1), record("main", 2)
    check(old, "--save-baseline", "main")
    by_name = json.loads(check(other, "--against", "main", "--format", "json")[1])
    by_path = json.loads(check(other, "--against", "./main", "--format", "json")[1])
    assert by_name["kinds"][0]["growth_ns"] != 0
    assert by_path["kinds"][0]["growth_ns"] == 0


def test_several_runs_of_a_baseline_show_their_spread(check: Check) -> None:
    old = [record(f"old-{n}", n) for n in range(4)]
    assert check(*old, "--save-baseline", "main")[2].startswith("saved .stashtrace/baselines/main.json: 4 runs, ")
    content = json.loads(check(record("new", 9), "--against", "main", "--format", "json")[1])
    assert content["before"]["runs"] == 4
    assert content["conditions"][0]["bounds_from"] == "runs"
    assert content["conditions"][0]["allowance_ns"] == 0
    again = check(record("newer", 10), *(word for path in old for word in ("--against", path)), "--format", "json")
    assert json.loads(again[1])["conditions"][0]["bounds_from"] == "runs"


def test_a_worse_run_does_not_become_the_baseline(check: Check, tmp_path: Path) -> None:
    old, slow = record("old", 1), record("slow", 2, backward_ns=80_000_000)
    check(old, "--save-baseline", "main")
    before = (tmp_path / ".stashtrace/baselines/main.json").read_text()
    code, _, err = check(slow, "--against", "main", "--save-baseline", "main")
    assert code == 1
    assert "not saved as main: worse" in err
    assert (tmp_path / ".stashtrace/baselines/main.json").read_text() == before
    again = record("again", 3)
    code, _, err = check(again, "--against", "main", "--fail-if", "step+20%", "--save-baseline", "good")
    assert (code, "saved .stashtrace/baselines/good.json" in err) == (0, True)


def test_a_run_against_itself_is_the_same_recording(check: Check, tmp_path: Path) -> None:
    old = record("old", 1)
    shutil.copytree(old, "a copy")
    check(old, "--save-baseline", "main")
    for against in (old, "a copy", "main"):
        code, out, _ = check(old, "--against", against, "--fail-if", "step+50%", "--junit", "told.xml")
        assert code == 5
        assert "inconclusive: both sides are the same recording" in out
        assert "would decide" not in out
        assert "the same recording" in (tmp_path / "told.xml").read_text()
    assert "the same recording" not in check(old, "--against", record("new", 2))[1]


def test_a_damaged_baseline_is_saved_again_where_it_is(check: Check, tmp_path: Path) -> None:
    run = record("new", 1)
    for folder in (".stashtrace/baselines", "of others"):
        place = tmp_path / folder / "main.json"
        place.parent.mkdir(parents=True)
        for content in (b'{"stashtrace_baseline": 1, "ru', b'{"stashtrace_baseline": \xff'):
            place.write_bytes(content)
            code, _, err = check(run, "--against", f"{folder}/main.json")
            assert (code, "is not a usable baseline" in err) == (4, True)
            command = shlex.split(err.partition("hint: `stashtrace check RUN ")[2].partition("`")[0])
            assert check(run, *command)[0] == 0
            assert check(run, "--against", f"{folder}/main.json")[0] == 5, "saved there, it is the same recording"


def test_a_baseline_that_is_not_there(check: Check) -> None:
    run = record("new", 1)
    code, out, err = check(run, "--against", "main")
    assert (code, out) == (4, "")
    assert err == (
        "error: main is neither a baseline in .stashtrace/baselines nor a run directory\n\n"
        "hint: `stashtrace check RUN --save-baseline main` saves one\n"
    )
    check(run, "--save-baseline", "other")
    assert "hint: baselines there: other; `stashtrace check" in check(run, "--against", "main")[2]


def test_a_baseline_of_another_version(check: Check, tmp_path: Path) -> None:
    run = record("new", 1)
    check(run, "--save-baseline", "main")
    file = tmp_path / ".stashtrace/baselines/main.json"
    file.write_text(file.read_text().replace('"stashtrace_baseline":1', '"stashtrace_baseline":7'))
    code, out, err = check(run, "--against", "main")
    assert (code, out) == (4, "")
    assert "is a baseline of version 7, written by stashtrace " in err
    assert "hint: `stashtrace check RUN --save-baseline main` saves it again" in err


def test_a_baseline_by_url(check: Check, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="the extra stashtrace[remote] is not installed")
    old, new = record("old", 1), record("new", 2)
    folder = f"file://{tmp_path}/shared/lines"
    assert check(old, "--save-baseline", "main", "--baselines", folder)[2].startswith(f"saved {folder}/main.json")
    by_name = check(new, "--against", "main", "--baselines", folder, "--format", "json")
    by_url = check(new, "--against", f"{folder}/main.json", "--format", "json")
    by_run = check(new, "--against", f"file://{tmp_path}/old", "--format", "json")
    numbers = [json.loads(answer[1])["conditions"] for answer in (by_name, by_url, by_run)]
    assert numbers[0] == numbers[1] == numbers[2]
    assert check(new, "--against", f"{folder}/gone.json")[0] == 4
    assert check(new, "--against", "gone", "--baselines", folder)[0] == 4


def test_jobs_that_do_not_compare(check: Check) -> None:
    before, after = record("old", 1), record("new", 2, ranks=3)
    code, out, err = check(after, "--against", before, "--junit", "tests.xml")
    assert code == 4
    assert "not comparable: the jobs differ in ranks (2 -> 3)" in out
    assert "hint: `--allow ranks` compares them all the same" in err
    assert ElementTree.parse("tests.xml").getroot().get("errors") == "1"
    code, out, _ = check(after, "--against", before, "--allow", "ranks")
    assert code in (0, 5)
    assert "  ranks  2 -> 3" in out


def test_the_newest_run_by_default(check: Check) -> None:
    for name, begin_ns in (("stash-1", 5), ("stash-0", 6)):
        file = Path(record(name, begin_ns)) / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"begin_realtime_ns": begin_ns}))
    content = json.loads(check("--against", "stash-1", "--format", "json")[1])
    assert content["after"]["name"] == "stash-0"


def test_no_run_at_all(check: Check) -> None:
    code, _, err = check("--save-baseline", "main")
    assert code == 4
    assert "no run directory ./stash-* is here" in err


class TestOnGitHub:
    def test_summary_and_annotations(self, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        summary = tmp_path / "summary.md"
        summary.write_text("what another step wrote\n")
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
        slow = record("new", 2, backward_ns=80_000_000)
        code, out, err = check(slow, "--against", record("old", 1), "--format", "json")
        assert code == 1
        assert json.loads(out)["verdict"] == "worse"  # annotations are not on stdout
        assert "::error title=stashtrace check%3A step+5%25 worse::worse beyond doubt" in err
        text = summary.read_text()
        assert text.startswith("what another step wrote\n### stashtrace check: worse\n")
        assert "| step+5% |" in text

    def test_no_annotation_elsewhere_unless_asked_for(self, check: Check) -> None:
        runs = record("new", 2, backward_ns=80_000_000), "--against", record("old", 1)
        assert "::" not in check(*runs)[2]
        _, out, err = check(*runs, "--annotate")
        assert "\n::error " in out
        assert "::" not in err

    def test_a_summary_that_cannot_be_written_changes_no_verdict(
        self, check: Check, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/nowhere/summary.md")
        code, _, err = check(record("new", 2, backward_ns=80_000_000), "--against", record("old", 1))
        assert code == 1
        assert "warning: cannot write /nowhere/summary.md" in err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run"], "nothing to compare with"),
        (["run", "--against", "run", "--fail-if", "step"], "--fail-if step is not of the form KIND+N%"),
        (["run", "--against", "run", "--fail-if", "disk+1%"], "unknown kind 'disk'"),
        (["run", "--against", "run", "--allow", "moon"], "--allow cannot be 'moon'"),
        (["run", "--against", "run", "--allowance", "much"], "--allowance much is not a number of percent"),
        (["run", "--save-baseline", "../main"], "--save-baseline ../main is no name for a baseline"),
        (["run", "--against", "run", "--before", "true"], "--before needs --rerun N"),
        (["run", "--against", "run", "--", "true"], "COMMAND needs --rerun N"),
        (["--rerun", "2", "--before", "true"], "no command to run"),
        (["--rerun", "0", "--before", "true", "--", "true"], "--rerun 0 is not a whole number of at least 1"),
        (["--rerun", "2", "--", "true"], "nothing says what was before"),
        (["--rerun", "2", "--before", "'", "--", "true"], "--before '"),
        (["--rerun", "2", "--before", " ", "--", "true"], "--before is empty"),
        (["--rerun", "2", "--before", "true", "--against", "x", "--", "true"], "both say what was before"),
        (["run", "--rerun", "2", "--before", "true", "--", "true"], "--rerun records its runs itself"),
        (["--rerun", "2", "--before-dir", "gone", "--", "true"], "gone is no folder to run a job in"),
    ],
)
def test_what_makes_no_sense(check: Check, words: list[str], error: str) -> None:
    record("run", 1)
    code, out, err = check(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert error in err
    assert "\nhint: " in err


@pytest.mark.parametrize("words", [["gone", "--against", "run"], ["run", "--against", "gone/x"]])
def test_what_is_not_there(check: Check, words: list[str]) -> None:
    record("run", 1)
    code, out, err = check(*words)
    assert (code, out) == (4, "")
    assert "does not exist" in err


def test_a_run_without_steps_is_named(check: Check) -> None:
    main(["run", "-o", "bare", "--no-merge", "--", sys.executable, "-c", "open('/dev/null').close()"])
    code, out, err = check("bare", "--against", record("old", 1))
    assert (code, out) == (4, "")
    assert "error: bare: no rank has a step" in err
    assert "\nhint: " in err


def test_a_file_that_cannot_be_written_is_reported_before_anything_is_read(check: Check) -> None:
    code, _, err = check("gone", "--against", "gone", "--junit", "no/such/folder.xml")
    assert code == 3
    assert "cannot write no/such/folder.xml" in err


JOB = "import sys, time, stashtrace\nfor _ in range(18):\n    time.sleep({seconds})\n    stashtrace.step()\n"


#: One function sleeps, another one computes; lines above may be more. Stacks are read from the first step on.
FUNCTIONS = """import time, stashtrace
{above}
def decode():
    time.sleep({seconds})

def augment():
    until = time.monotonic() + 0.004
    while time.monotonic() < until:
        pass

for _ in range(40):
    augment()
    decode()
    stashtrace.step()
"""


class TestByTurns:
    def test_a_command_before(self, check: Check, tmp_path: Path) -> None:
        for name, seconds in (("old", 0.01), ("new", 0.03)):
            (tmp_path / f"{name}.py").write_text(JOB.format(seconds=seconds))
        before = f"{shlex.quote(sys.executable)} old.py"
        code, out, err = check("--rerun", 2, "--before", before, "-o", "runs", "--", sys.executable, "new.py")
        assert code == 1
        assert re.search(r"^  command +old\.py -> new\.py$", out, re.M)
        order = [line.rpartition("/")[2] for line in err.splitlines() if line.startswith("stashtrace: run ")]
        assert order == ["before-0", "after-0", "after-1", "before-1"]

    def test_a_folder_before(self, check: Check, tmp_path: Path) -> None:
        for name, seconds in (("old", 0.01), ("new", 0.03)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "job.py").write_text(JOB.format(seconds=seconds))
        os.chdir(tmp_path / "new")
        code, out, _ = check("--rerun", 1, "--before-dir", "../old", "-o", "runs", "--", sys.executable, "job.py")
        assert code == 1
        assert "worse beyond doubt: the step went" in out

    def test_the_function_that_takes_longer_is_named(
        self, check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Real recordings of two folders, in the newer of which the function stands 9 lines further down."""
        for name, seconds, lines in (("old", 0.01, 1), ("new", 0.06, 10)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "job.py").write_text(FUNCTIONS.format(seconds=seconds, above="#\n" * (lines - 1) + "#"))
        os.chdir(tmp_path / "new")
        words = ("--rerun", 1, "--before-dir", "../old", "-o", "runs", "--format", "json")
        code, out, _ = check(*words, "--", sys.executable, "job.py")
        assert code == 1
        # During other work, what computes may differ as well.
        rows = [
            row for row in json.loads(out)["functions"] if row["verdict"] != "no difference" and row["kind"] == "other"
        ]
        assert [(row["kind"], row["function"], row["line"]) for row in rows] == [("other", "decode", 13)]
        assert rows[0]["low_ns"] > 25_000_000, "of 50 ms: on a busy machine sleeps take longer, in either folder"
        assert main(["diff", "runs/before-0", "runs/after-0"]) == 0
        (sentence,) = (line for line in capsys.readouterr().out.splitlines() if re.match(r"other .*decode", line))
        assert re.fullmatch(r"other \+[\d.]+ ms a step: decode \(job.py:13\) \+[\d.]+ to [\d.]+ ms", sentence)
        assert main(["diff", "runs/before-0", "runs/after-0", "--of", "lines", "--format", "json"]) == 0
        listed = [row["function"] for row in json.loads(capsys.readouterr().out) if row["kind"] == "other"]
        assert listed == ["decode"]

    def test_runs_for_a_baseline(self, check: Check, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(JOB.format(seconds=0.01))
        command = ("-o", "first", "--", sys.executable, "job.py")
        assert "main.json: 2 runs, " in check("--rerun", 2, "--save-baseline", "main", *command)[2]
        command = ("-o", "second", "--format", "json", "--", sys.executable, "job.py")
        content = json.loads(check("--rerun", 1, "--against", "main", *command)[1])
        assert (content["before"]["runs"], content["after"]["runs"]) == (2, 1)

    def test_a_job_that_fails(self, check: Check) -> None:
        words = ("--rerun", 1, "--before", "false", "-o", "runs", "--", sys.executable, "job.py")
        code, out, err = check(*words)
        assert (code, out) == (3, "")
        assert "error: before-0 ended with exit code 1: " in err


class TestDiff:
    def test_of_several_runs(self, check: Check, capsys: pytest.CaptureFixture[str]) -> None:
        old, new = ([record(f"{name}-{n}", seed + n) for n in range(3)] for name, seed in (("old", 0), ("new", 50)))
        assert main(["diff", "--before", *old, "--after", *new]) == 0
        out = capsys.readouterr().out
        assert out.startswith("jobs: nothing that was recorded differs")
        assert "by the spread of runs the step changed by " in out
        assert main(["diff", "--before", *old, "--after", *new, "--format", "json"]) == 0
        step = json.loads(capsys.readouterr().out)[0]
        assert (step["before_runs_count"], step["after_runs_count"]) == (3, 3)
        assert step["low_ns"] <= step["change_ns"] <= step["high_ns"]
        assert step["detectable_ns"] >= step["noise_ns"]

    def test_of_two_runs_says_what_it_could_have_seen(self, check: Check, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["diff", record("old", 1), record("new", 2, ranks=3)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[:2] == ["jobs: 1 recorded fact differs", "  ranks  2 -> 3"]
        assert any("in four of five such comparisons a change of " in line for line in lines)
        assert "one run a side: equal runs may differ by 2 % of the step more than their steps show" in lines

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            ([], "the following arguments are required: A, B"),
            (["a"], "the following arguments are required: B"),
            (["a", "b", "c"], "3 runs, but which were before?"),
            (["--before", "a"], "--after is missing"),
            (["a", "--before", "b", "--after", "c"], "so a has no side"),
        ],
    )
    def test_which_is_which(
        self, words: list[str], error: str, check: Check, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["diff", *words]) == 2
        assert error in capsys.readouterr().err
