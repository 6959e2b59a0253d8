"""A process that has MPI says so, since its calls are seen by nobody."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from installed import needs_torch
from traced import run_traced

pytestmark = pytest.mark.torch
needs_torch()

TRAIN = """
    import ctypes, os, signal, sys
    import torch
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for Open MPI: what counts is its name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("mpi") / "libmpi.so.40.30.4"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"],
        input=b"int MPI_Init(void) { return 0; }",
        check=True,
    )
    return path


def test_a_library_that_the_job_loads(tmp_path: Path, library: Path) -> None:
    run = run_traced(TRAIN + f"    ctypes.CDLL({str(library)!r})\n", tmp_path / "job")
    assert run.facts(0)["mpi_loaded"] == str(library)


@pytest.mark.thorough
def test_none(tmp_path: Path, library: Path) -> None:
    other = library.with_name("libmpi4py_helper.so")
    shutil.copy(library, other)
    run = run_traced(TRAIN + f"    ctypes.CDLL({str(other)!r})\n", tmp_path / "job")
    assert "mpi_loaded" not in run.facts(0)


@pytest.mark.thorough
def test_a_rank_that_is_killed_after_the_import_of_mpi4py(tmp_path: Path, library: Path) -> None:
    package = tmp_path / "own/mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "MPI.py").write_text(f"import ctypes\nctypes.CDLL({str(library)!r})\n", encoding="utf-8")
    script = f"    import sys; sys.path.insert(0, {str(tmp_path / 'own')!r})\n" + TRAIN
    script += "    from mpi4py import MPI\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    run = run_traced(script, tmp_path / "job", check=False)
    assert run.exit_codes == [-9]
    assert run.facts(0)["mpi_loaded"] == str(library)
