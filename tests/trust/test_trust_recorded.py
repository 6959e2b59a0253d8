"""Every command answers, or refuses in one line, about real jobs of several ranks, of ours and of torch.profiler.

The jobs have the settings of DistributedDataParallel and FSDP that change what is sent and when; a seed adds sleeps,
loaders, windows and options of the profiler. TRUST_JOBS_SEED chooses other ones. The last tests read the jobs and files
that once had a wrong answer, from the folder next to the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from forked_commands import ROOT, environment

from trust.every_command import faults_of

pytestmark = pytest.mark.trust
CASES = ROOT.parent / "shared" / "cases"
JOB = Path(__file__).with_name("settings_job.py")
SEED = int(os.environ.get("TRUST_JOBS_SEED", "29"))
SETTINGS = (
    *("plain", "find_unused", "find_unused_all", "static_graph", "bucket_view", "buffers", "join", "no_sync"),
    *("mixed_precision", "half_hook", "gather_hook", "compiled", "two_models", "by_hand", "fully_shard", "fsdp"),
)
#: Commands that answer about any job with steps; the others need what not each of them has.
LEAST_ANSWERS = 40
#: Steps of the jobs that read their number from ``STEPS``.
STEPS, LONGEST_S = "12", 300


@pytest.fixture(autouse=True)
def _current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some jobs write into the current folder."""
    monkeypatch.chdir(tmp_path)


def torchrun(*words: str, ranks: int = 2, run: Path | None = None, fails: bool = False) -> None:
    """Run a job of several ranks; with a run directory, recorded. ``fails``: it may end badly."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *words]
    if run is not None:
        command = [sys.executable, "-m", "stashtrace", "run", "--out", str(run), "--", *command]
    # With torch's compiler, which its profiler imports, too.
    variables = environment(STEPS=STEPS, OMP_NUM_THREADS="1") | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, env=variables, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or fails, said[-2000:]
    assert "the merge failed" not in said, said[-2000:]
    assert "a fault of stashtrace" not in said, said[-2000:]


def check(path: Path, other: Path, folder: Path, least: int = LEAST_ANSWERS) -> None:
    faults, answered_count = faults_of(path, other, folder)
    assert not faults, "\n".join(faults)
    assert answered_count >= least, f"nearly all is refused of {path}"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of torch.profiler's files: two jobs of each setting."""
    folder = tmp_path_factory.mktemp("profiled")
    torchrun(str(JOB), ",".join(SETTINGS), f"{SEED},{SEED + 1}", str(folder))
    return folder


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
@pytest.mark.parametrize("setting", SETTINGS)
def test_files_of_a_profiler(profiled: Path, tmp_path: Path, setting: str, seed: int) -> None:
    check(profiled / f"{setting}.{seed}", profiled / f"plain.{SEED}", tmp_path)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_recorded_job(tmp_path: Path, setting: str) -> None:
    run = tmp_path / "run"
    torchrun(str(JOB), setting, str(SEED), str(tmp_path / "profiled"), run=run)
    check(run, tmp_path / "profiled" / f"{setting}.{SEED}", tmp_path / "answers")


def cases(pattern: str, left_out: Sequence[str] = ()) -> list[str]:
    """Paths of the cases in the folder next to the checkout; one that is empty where they are missing."""
    found = sorted(path for path in CASES.glob(pattern) if path.name not in left_out)
    return [str(path.relative_to(CASES)) for path in found] or [""]


def needs(name: str) -> None:
    if name in ("", "."):
        pytest.skip(f"no {CASES} next to the checkout")


@pytest.mark.parametrize("name", cases("jobs/*.py", ("clk.py", "gen.py")) + cases("traces/*/[lr][01]*_*.py"))
def test_a_job_that_had_a_wrong_answer(tmp_path: Path, name: str) -> None:
    needs(name)
    run = tmp_path / "run"
    torchrun(str(CASES / name), ranks=3 if "cp_ring" in name else 2, run=run, fails="crash" in name)
    check(run, run, tmp_path / "answers", least=20)


@pytest.mark.parametrize("name", sorted({str(Path(name).parent) for name in cases("traces/*/*.json.gz")}))
def test_files_that_had_a_wrong_answer(tmp_path: Path, name: str) -> None:
    needs(name)
    copy = shutil.copytree(CASES / name, tmp_path / "case")
    check(copy, copy, tmp_path / "answers")
