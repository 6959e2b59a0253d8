"""A folder full of files that are named like modules of Python, of ours and of what we need: none is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, environment
from test_reading import write_run

from stashtrace.cli import COMMANDS
from stashtrace.record.program import own_program

PACKAGES = (
    "numpy",
    "torch",
    "torchdata",
    "dask",
    "distributed",
    "fsspec",
    "pyarrow",
    "pandas",
    "matplotlib",
    "cupy",
    "duckdb",
    "perfetto",
    "pynvml",
    "tomllib",
    "tomli",
    "yaml",
    "sitecustomize",
    "usercustomize",
)
#: Commands with arguments that make them do their work; those that train are in separate tests.
WORK: dict[str, tuple[tuple[str, ...], ...]] = {
    "run": (("run", "--out", "{tmp}/traced", "--", sys.executable, "-c", "print(6 * 7)"),),
    "env": (("env", "--out", "{tmp}/env"),),
    "merge": (("merge", "{run}"),),
    "scrub": (("scrub", "{run}", "-o", "{tmp}/scrubbed"),),
    "summary": (("summary", "{run}"),),
    "report": (("report", "{run}", "-o", "{tmp}/report.html"), ("report", "{run}", "--format", "markdown")),
    "log": (("log", "{run}", "--to", "tensorboard"),),
    "info": (("info", "{run}"),),
    "capture": (("capture", "{run}"),),
    "live": (("live", "{run}", "--once"),),
    "metrics": (("metrics", "--format", "json"),),
    "analyze": (("analyze", "stalls", "{run}"), ("analyze", "io", "{run}", "--format", "json")),
    "sql": (("sql", "{run}", "select count(*) from steps"),),
    "export": (("export", "perfetto", "{run}", "-o", "{tmp}/t.pftrace"),),
    "view": (("view", "{tmp}/nothing"),),
    "diff": (("diff", "{run}", "{run}"),),
    "check": (("check", "{run}", "--against", "{run}"),),
    "history": (("history", "{tmp}/history", "--add", "{run}"), ("history", "{tmp}/history", "runs")),
    "bisect": (("bisect", "--good", "HEAD", "--bad", "HEAD", "--", sys.executable),),
    "tune": (("tune", "-o", "{tmp}/tune", "--", sys.executable, "-c", "raise SystemExit(1)"),),
    "characterize": (("characterize", "{tmp}/nothing"),),
    "whatif": (("whatif", "{run}"),),
    "whatif-cache": (("whatif-cache", "{run}"),),
    "stage": (("stage", "{run}", "--to", "{tmp}/fast"),),
    "recommend": (("recommend", "{tmp}/nothing"),),
    "model": (("model", "{run}"),),
    "layers": (("layers", "{run}"),),
    "calibrate": (("calibrate", "--sizes", "nonsense"),),
    "doctor": (("doctor",),),
}
#: What the installed command does; with PYTHONPATH nothing is in the way of a package that is not installed.
COMMAND = "import sys\nfrom stashtrace.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.fixture(scope="module")
def shadows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; each file writes its name into the file ``imported`` next to the folder."""
    folder = tmp_path_factory.mktemp("shadows") / "here"
    folder.mkdir()
    text = f"open({str(folder.parent / 'imported')!r}, 'a').write(__name__ + ' ')\nraise SystemExit('a shadow')\n"
    for name in {*sys.stdlib_module_names, *PACKAGES} - set(sys.builtin_module_names):
        (folder / f"{name}.py").write_text(text)
    (folder / "stashtrace").mkdir()
    (folder / "stashtrace/__init__.py").write_text(text)
    return folder


def imported(shadows: Path) -> str:
    file = shadows.parent / "imported"
    names = file.read_text() if file.exists() else ""
    file.unlink(missing_ok=True)
    return names


def outside(**extra: str) -> dict[str, str]:
    """Without PYTHONSAFEPATH, which would make all of this easy."""
    return {k: v for k, v in environment(**extra).items() if k != "PYTHONSAFEPATH"}


def run_in(folder: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=outside(**extra), capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )


def test_every_command_is_tried() -> None:
    assert set(WORK) == {name for name, _ in COMMANDS}


#: What starts processes, or imports most; the others are started in the same way.
OFTEN = ("run", "env", "merge", "summary", "report", "live", "analyze", "export", "view", "sql")


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in OFTEN)) for name in WORK]
)
def test_no_command_imports_from_the_current_folder(shadows: Path, tmp_path: Path, command: str) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "command.py").write_text(COMMAND)
    for line in WORK[command]:
        words = [word.format(tmp=tmp_path, run=tmp_path / "run") for word in line]
        done = run_in(shadows, sys.executable, str(tmp_path / "command.py"), *words)
        assert (imported(shadows), "a bug in stashtrace" in done.stderr) == ("", False), done.stderr


def test_our_processes_do_not_either(shadows: Path) -> None:
    for module in ("stashtrace", "stashtrace.lab.calibrate.calibrate_worker", "stashtrace.lab.sweep.study_worker"):
        done = run_in(shadows, *own_program(module, "--help"))
        assert imported(shadows) == "", done.stderr
    assert run_in(shadows, *own_program("stashtrace", "--version")).stdout.startswith("stashtrace ")


@pytest.mark.torch
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            (
                "calibrate",
                "--backend",
                "gloo",
                "--sizes",
                "1K:4K",
                "--seconds",
                "1",
                "--launches",
                "1",
                "--out",
                "{tmp}/c",
            ),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            (
                "model",
                "--sweep",
                "depth",
                "--family",
                "transformer",
                "--depths",
                "1,2,3",
                "--repeat",
                "1",
                "--iterations",
                "12",
                "--batch-size",
                "2",
                "--out",
                "{tmp}/s",
            ),
            marks=pytest.mark.trust,
        ),
    ],
    ids=["calibrate", "sweep"],
)
def test_what_trains_does_not_either(shadows: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "command.py").write_text(COMMAND)
    done = run_in(shadows, sys.executable, str(tmp_path / "command.py"), *(w.format(tmp=tmp_path) for w in words))
    assert (imported(shadows), done.returncode) == ("", 0), done.stderr


JOB = """
import os, sys
print(repr(sys.path), os.getcwd(), sys.argv, sorted(k for k in os.environ if k.startswith("PYTHONSAFE")))
import helper
"""


@pytest.mark.parametrize("how", ["script", "-c", "-m"])
@pytest.mark.parametrize("safe", [False, True])
def test_the_job_keeps_its_path(tmp_path: Path, how: str, safe: bool) -> None:
    """The folder of the script, or the current one, stands where it would; PYTHONPATH goes on behind ours."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/helper.py").write_text("print('helped')\n")
    (tmp_path / "lib/sitecustomize.py").write_text("import sys\nprint('the user\\'s own', __name__ in sys.modules)\n")
    words = {"script": ["job.py"], "-c": ["-c", JOB], "-m": ["-m", "job"]}[how]
    extra = {"PYTHONPATH": f"{tmp_path / 'lib'}:{ROOT}", "PYTHONUNBUFFERED": "1"} | (
        {"PYTHONSAFEPATH": "1"} if safe and how != "-m" else {}
    )
    done = [
        subprocess.run(
            [*before, sys.executable, *words],
            cwd=tmp_path,
            env={**outside(), **extra},
            capture_output=True,
            text=True,
            timeout=100,
        )
        for before in ([], [sys.executable, "-m", "stashtrace", "run", "--out", "out", "--no-merge", "--"])
    ]
    inject = str(ROOT / "stashtrace/probes/inject")
    # The first is that of the Python that runs the command line.
    assert done[1].stdout.removeprefix("the user's own True\n").replace(f"{inject!r}, ", "") == done[0].stdout
    assert done[0].stdout.count("the user's own True") == 1
    assert "helped" in done[0].stdout
    assert "error" not in done[1].stderr


def in_a_job(tmp_path: Path, job: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``job`` as a Python of a traced job whose PYTHONPATH names ``tmp_path``."""
    inject = str(ROOT / "stashtrace/probes/inject")
    extra = {"PYTHONPATH": os.pathsep.join([inject, str(tmp_path)]), "STASHTRACE_DIR": str(tmp_path / "out")}
    words = [sys.executable, *options, "-c", job]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=outside() | extra)


def test_a_folder_of_our_name_is_no_package(tmp_path: Path) -> None:
    """A folder without modules, such as a run's, hides neither the probes nor the annotations."""
    (tmp_path / "stashtrace").mkdir()
    job = "import sys, stashtrace\nprint(stashtrace.__file__, 'stashtrace.probes.bootstrap' in sys.modules, sep='\\n')"
    done = in_a_job(tmp_path, f"import sitecustomize\n{job}", "-S")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str(ROOT / "stashtrace/__init__.py"), "True"]


@pytest.mark.parametrize("has_probes", [False, True])
def test_a_foreign_package_of_our_name_is_not_imported_early(tmp_path: Path, has_probes: bool) -> None:
    """In PYTHONPATH it is the user's will, and the job imports it as it would without us."""
    (tmp_path / "stashtrace").mkdir()
    (tmp_path / "stashtrace/__init__.py").write_text("print('imported', flush=True)\n")
    if has_probes:
        (tmp_path / "stashtrace/probes.py").write_text("print('theirs')\n")
    job = "print('begun', flush=True)\nimport stashtrace\nprint(stashtrace.__file__)"
    if has_probes:
        job += "\nimport stashtrace.probes"
    done = in_a_job(tmp_path, job)
    expected = ["begun", "imported", str(tmp_path / "stashtrace/__init__.py")]
    assert done.stdout.splitlines() == expected + ["theirs"] * has_probes
    assert ("probes are off" in done.stderr) == has_probes, "they would stand in the place of theirs"
