"""What a run directory holds of secrets (nothing), and who may read it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import ROOT, Answer, environment

from stashtrace.cli import main
from stashtrace.files.whole_files import complete_file
from stashtrace.format.reader import open_run
from stashtrace.lab import synth
from stashtrace.lab.characterize.characterization_document import characterization_page
from stashtrace.lab.characterize.request import CharacterizationRequest, open_characterization
from stashtrace.lab.characterize.run_on_hosts import HostTask, here, run_tasks
from stashtrace.lab.plot_helpers import save_figure
from stashtrace.scrubbing.secrets import scrub_arguments

CASES = json.loads((ROOT / "tests/data/scrubbed_arguments.json").read_text(encoding="utf-8"))
#: Addresses as names of files, and local names with the same signs.
NAMES = json.loads((ROOT / "tests/data/scrubbed_names.json").read_text(encoding="utf-8"))
Run = Callable[..., Answer]
JOB = f"""
import contextlib
for name in {[given for given, _ in NAMES] + ["local?b@c"]!r}:
    with contextlib.suppress(OSError): open(name).close()
"""
#: Of these the arguments of :func:`test_both_halves_scrub_the_same_way` are made.
FRAGMENTS = (
    "--token --key --pwd --pass -u -H token key Api-Key Authorization Bearer no_token pad-token "
    "me X1 a.b 1000 / // :/ :// : = , ; & ? # @ ' \" { } ( -- - https s3 x+https ß "
    "Cookie a=b; -x proxy Basic dTpwYXNz bearer digest machine login password None webhook_url --pat --sig \\n % "
    "hf_X1secretX1secretabcd sk-proj- AKIA0123456789ABCDEF eyJ .eyJ -----BEGIN PRIVATE KEY----- -----END"
)


def test_the_job_stores_what_the_rule_leaves(run: Run, tmp_path: Path) -> None:
    """The native half agrees with ``stashtrace.scrubbing.secrets`` on every case, and no file holds a secret."""
    words = [word for given, _ in CASES for word in (*given, "--next", "x")]
    expected = [word for _, kept in CASES for word in (*kept, "--next", "x")]
    (tmp_path / "job.py").write_text(JOB)
    extra = {
        "SLURM_PROCID": "0",
        "SLURM_JWT": "X1secret",
        "SLURM_JOB_USER": "X1secret",
        "PET_RDZV_CONF": "X1secret",
        "OMPI_COMM_WORLD_X": "X1secret",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "https://u:X1secret@host/job?sig=X1secret",
        "PET_RDZV_ID": "https://u:X1secret@host/job?sig=X1secret",
        "PET_NNODES": "2",
    }
    answer = run("run", "--out", "out", "--", sys.executable, "job.py", *words, **extra)
    assert answer.code == 0, answer.err
    (process,) = open_run(str(tmp_path / "out")).processes
    assert process.metadata["argv"][2:] == expected
    plain = {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "PET_NNODES": "2"}
    addresses = {"TORCHELASTIC_RUN_ID": "https://host/job", "PET_RDZV_ID": "https://host/job"}
    assert process.metadata["env"] == plain | addresses
    assert json.loads((tmp_path / "out/run.json").read_text())["command"][2:] == expected
    names = run("analyze", "io", "out", "--format", "json").out
    assert "X1secret" not in names + run("info", "out").out
    paths = {row["path"] for row in json.loads(names)}
    assert {kept if kept.startswith("/") else f"{tmp_path}/{kept}" for _, kept in NAMES} <= paths
    raw = run("run", "--out", "raw", "--no-merge", "--", sys.executable, "job.py", *words, **extra)
    assert raw.code == 0
    texts = [path.read_bytes() for path in (tmp_path / "raw").iterdir()]
    assert not any(b"X1secret" in text for text in texts)
    assert any(b"local?b@c" in text for text in texts)


def test_both_halves_scrub_the_same_way(run: Run, tmp_path: Path) -> None:
    """What stashtrace/scrubbing/secrets.py and csrc/core/scrubbing.cpp make of the same made-up arguments and names."""
    chance = random.Random(7)
    fragments = [*FRAGMENTS.split(), " ", " ", "="]
    words = ["".join(chance.choices(fragments, k=chance.randrange(1, 12))) for _ in range(1200)]
    answer = run("run", "--out", "out", "--", sys.executable, "-c", "", *words)
    assert answer.code == 0, answer.err
    (process,) = open_run(str(tmp_path / "out")).processes
    found, expected = process.metadata["argv"][3:], scrub_arguments([sys.executable, "-c", "", *words])[3:]
    assert [(w, f) for w, f, e in zip(words, found, expected, strict=True) if f != e] == []


@pytest.mark.parametrize(
    ("umask", "options", "directory", "file"),
    [
        (0o000, (), 0o700, 0o600),
        (0o077, ("--share",), 0o750, 0o640),
        pytest.param(0o022, (), 0o700, 0o600, marks=pytest.mark.thorough),
        pytest.param(0o077, (), 0o700, 0o600, marks=pytest.mark.thorough),
        pytest.param(0o000, ("--share",), 0o750, 0o640, marks=pytest.mark.thorough),
        pytest.param(0o022, ("--share",), 0o750, 0o640, marks=pytest.mark.thorough),
    ],
)
def test_only_the_user_may_read_a_run(
    tmp_path: Path, umask: int, options: tuple[str, ...], directory: int, file: int
) -> None:
    """The umask of the job stays as it is; merging again and exporting into the run keep the rights."""
    script = "import os; was = os.umask(0); os.umask(was); print(oct(was))"
    ours = [sys.executable, "-m", "stashtrace"]
    for words in (
        ["run", "--out", "out", *options, "--", sys.executable, "-c", script],
        ["merge", "out"],
        ["export", "perfetto", "out", "-o", "out/more.pftrace"],
    ):
        done = subprocess.run(
            [*ours, *words],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            preexec_fn=lambda: os.umask(umask) and None,
        )
        assert done.returncode == 0, done.stderr
        if words[0] == "run":
            assert done.stdout == f"{oct(umask)}\n"
    assert (tmp_path / "out").stat().st_mode & 0o777 == directory
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "out").iterdir()} == {
        path.name: oct(file) for path in (tmp_path / "out").iterdir()
    }
    assert (tmp_path / "out/more.pftrace").exists()


def test_env_makes_a_private_run_too(run: Run, tmp_path: Path) -> None:
    assert "STASHTRACE_SHARE" not in run("env", "--out", "own").out
    assert "export STASHTRACE_SHARE=1" in run("env", "--share", "--out", "shared").out
    for name, mode in (("own", 0o700), ("shared", 0o750)):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
        assert (tmp_path / name / "run.json").stat().st_mode & 0o777 == mode & 0o666


@pytest.mark.parametrize(("file", "directory"), [(0o600, 0o700), (0o640, 0o750)])
def test_stores_and_gathered_runs_follow_their_run(tmp_path: Path, file: int, directory: int) -> None:
    """Whatever the umask; ``merge --out`` makes a directory that nobody else may enter."""
    pytest.importorskip("pyarrow")
    synth.write(tmp_path / "run", synth.SyntheticJob(ranks=2, steps=6, calls_per_batch=6))
    for path in (tmp_path / "run").iterdir():
        path.chmod(file)
    before = os.umask(0)
    try:
        assert main(["export", "store", str(tmp_path / "run"), "-o", str(tmp_path / "store")]) == 0
        assert main(["merge", str(tmp_path / "run"), "--out", str(tmp_path / "whole")]) == 0
    finally:
        os.umask(before)
    for made in (tmp_path / "store", tmp_path / "whole"):
        modes = {oct(p.stat().st_mode & 0o777) for p in [made, *made.rglob("*")]}
        assert modes == {oct(file), oct(directory)}, made


def test_a_characterization_belongs_to_its_user(tmp_path: Path) -> None:
    """Everything in its folder: the answer, runs, what they printed, pages and pictures. The job keeps its umask."""
    out = tmp_path / "answer"
    script = "import os; was = os.umask(0); os.umask(was); print(oct(was))"
    before = os.umask(0)
    try:
        made = open_characterization(
            CharacterizationRequest(command=("torchrun", "--nproc-per-node", "2", "train.py"), out=out)
        )
        job = HostTask((sys.executable, "-c", script), {}, here)
        run_tasks([job], out / "runs/look", 3, 60.0, name="look", on_wait=lambda: None)
        made.save(out)
        with complete_file(out / "page.html") as partial:
            partial.write_text(characterization_page(made), encoding="utf-8")
        save_figure(SimpleNamespace(savefig=lambda path, **_: path.write_bytes(b"picture")), str(out / "answer.png"))
        assert main(["export", "csv", str(out / "runs/look"), "--table", "processes", "-o", str(out / "rows.csv")]) == 0
    finally:
        os.umask(before)
    assert "0o0" in (out / "runs/look.log").read_text().splitlines()
    found = {str(p.relative_to(out)): p.stat().st_mode & 0o777 for p in [out, *out.rglob("*")]}
    assert {
        "characterization.json",
        "page.html",
        "answer.png",
        "rows.csv",
        "runs/look.log",
        "runs/look/run.json",
    } <= set(found)
    assert found == {name: 0o700 if (out / name).is_dir() else 0o600 for name in found}
