"""`make demo` and `make test` take the caller's torch, or say what a download weighs before it begins.

The Pythons here are real environments without pip; what stands in them is written by the tests. pip is replaced by a
module that notes how it was called and writes the packages that it was asked for, so nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")

TORCH = """
import helper
from torch import distributed, utils
__version__ = {version!r}
def from_numpy(array): return array
"""
DISTRIBUTED = "def is_available(): return True\ndef is_gloo_available(): return {gloo}\n"
RUN = "def main(): return 7\n"
PIP = """
import json, os, pathlib, sys
print("PIP", *sys.argv[1:], flush=True)
with open(os.environ["PIP_NOTES"], "a", encoding="utf-8") as notes:
    print(json.dumps(sys.argv[1:]), file=notes)
if os.environ.get("PIP_FAILS") in sys.argv:
    sys.exit(23)
site = pathlib.Path(__file__).parents[1]
(site / "numpy.py").write_text("def zeros(count): return [0] * count")
for word in sys.argv:
    if word.startswith("torch=="):
        (site / "torch").mkdir(exist_ok=True)
        (site / "torch/__init__.py").write_text(f"__version__ = {word[7:]!r}")
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def environment(folder: Path) -> Path:
    """An environment without pip; returned is the folder of its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / Path(sysconfig.get_path("purelib", vars={"base": ""})).relative_to("/")


def torch_files(version: str = "2.11.0+cpu", gloo: bool = True) -> dict[str, str]:
    """A torch that requires `helper`, and next to them a package that has nothing to do with it."""
    return {
        "torch/__init__.py": TORCH.format(version=version),
        "torch/distributed/__init__.py": DISTRIBUTED.format(gloo=gloo),
        "torch/distributed/run.py": RUN,
        "torch/utils/__init__.py": "",
        "torch/utils/data.py": "",
        f"torch-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        "Requires-Dist: Helper-Package>=1; python_version >= '3'\nRequires-Dist: numpy\n"
        "Requires-Dist: not-installed\nRequires-Dist: unrelated; extra == 'more'\n",
        f"torch-{version}.dist-info/RECORD": "torch/__init__.py,,\n../../../bin/torchrun,,\n"
        f"torch-{version}.dist-info/METADATA,,\n",
        "helper.py": "",
        "helper_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: helper-package\nVersion: 1.0\n",
        "helper_package-1.0.dist-info/RECORD": "helper.py,,\nhelper_package-1.0.dist-info/METADATA,,\n",
        "unrelated.py": "",
        "unrelated-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: unrelated\nVersion: 1.0\n",
        "unrelated-1.0.dist-info/RECORD": "unrelated.py,,\n",
    }


@dataclass
class Caller:
    """A Python from which make is called, and the environment that make fills."""

    folder: Path
    site: Path
    venv: Path

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")}
        return subprocess.run(
            ["make", "--no-print-directory", f"PYTHON={self.folder / 'bin/python'}", f"VENV={self.venv}", *arguments],
            cwd=ROOT,
            env=kept | {"PIP_NOTES": str(self.venv / "notes"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def provide(self, *arguments: str, **variables: str) -> str:
        """Run ``make torch``, and return what was printed."""
        done = self.make("torch", *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        assert self.stamp(*arguments).exists()
        return done.stdout

    def stamp(self, *arguments: str) -> Path:
        named = dict(argument.split("=", 1) for argument in arguments)
        name = named.get("TORCH", "torch==2.13.0") + ("@" + named["TORCH_INDEX"] if "TORCH_INDEX" in named else "")
        return self.venv / f".installed-{name.replace('/', '_').replace(':', '_').replace('%', '_')}"

    def pip_calls(self) -> list[list[str]]:
        notes = self.venv / "notes"
        return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []

    def asks(self, code: str) -> str:
        """What a program prints in the environment."""
        python = self.venv / "bin/python"
        return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    site = environment(tmp_path / "caller")
    packages = environment(tmp_path / "venv")
    write(packages, {"pip/__init__.py": "", "pip/__main__.py": PIP})
    for stamp in (".made", ".tools"):
        (tmp_path / "venv" / stamp).touch()
    return Caller(tmp_path / "caller", site, tmp_path / "venv")


OTHERS = ["install", "-q", "numpy", "pillow"]


def test_size_is_said_before_the_download(caller: Caller) -> None:
    said = caller.provide()
    assert caller.pip_calls() == [OTHERS, ["install", "torch==2.13.0"]]
    before, pip, _ = said.partition("PIP install torch==2.13.0")
    assert pip
    assert "torch==2.13.0 will be installed. From PyPI that is " in before
    assert " GB" in before or "gigabytes" in before
    assert "make TORCH_INDEX=https://download.pytorch.org/whl/cpu" in before
    assert "Nothing to be done" in caller.make("torch").stdout


def test_torch_of_the_caller_is_taken(caller: Caller) -> None:
    write(caller.site, torch_files())
    said = caller.provide()
    assert caller.pip_calls() == [OTHERS]
    assert f"torch 2.11.0+cpu of {caller.folder / 'bin/python'} is taken: no download" in said
    found = caller.asks("import torch, helper, os; print(torch.__version__, os.path.realpath(torch.__file__))")
    assert found == f"2.11.0+cpu {caller.site / 'torch/__init__.py'}"
    assert caller.asks("from importlib.metadata import version; print(version('torch'))") == "2.11.0+cpu"
    assert subprocess.run([caller.venv / "bin/torchrun"], check=False).returncode == 7


def test_torch_that_was_taken_stays_where_the_environment_is_active(caller: Caller) -> None:
    write(caller.site, torch_files())
    caller.provide()
    caller.stamp().unlink()
    said = caller.provide(f"PYTHON={caller.venv / 'bin/python'}")
    assert f"The torch of {caller.venv} stays" in said
    assert caller.pip_calls() == [OTHERS]
    assert caller.asks("import torch; print(torch.__version__)") == "2.11.0+cpu"


def test_torchrun_starts_in_a_folder_with_a_space_in_its_name(tmp_path: Path) -> None:
    caller, venv = tmp_path / "a b/caller", tmp_path / "a b/venv"
    write(environment(caller), torch_files())
    write(environment(venv), {"pip/__init__.py": "", "pip/__main__.py": PIP})
    command = [caller / "bin/python", ROOT / "scripts/provide_torch.py", venv, "--requirement", "torch==2.13.0"]
    done = subprocess.run(command, env=os.environ | {"PIP_NOTES": str(venv / "notes")}, capture_output=True, text=True)
    assert "is taken: no download" in done.stdout, done.stdout + done.stderr
    assert subprocess.run([venv / "bin/torchrun"], check=False).returncode == 7


def test_nothing_else_of_the_caller_is_visible(caller: Caller) -> None:
    write(caller.site, torch_files())
    caller.provide()
    assert caller.asks("import importlib.util as u; print(u.find_spec('unrelated'))") == "None"
    # pip knows no file that belongs to the caller, so it cannot remove one.
    listed = caller.asks(
        "from importlib.metadata import distributions as d; print(sorted((p.name, p.files is None) for p in d()))"
    )
    assert listed == "[('torch', True)]"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"torch/__init__.py": "raise ImportError('libcudart.so.12: no such file')"}, "libcudart.so.12: no such file"),
        ({"torch/__init__.py": "import os; os.abort()"}, "its import is ended by signal 6"),
        ({"torch/__init__.py": "import sys; sys.exit(3)"}, "exit code 3"),
        (torch_files("2.1.9"), "version 2.1.9 is older than 2.2"),
        (torch_files(gloo=False), "built without gloo"),
        ({**torch_files(), "helper.py": "import unrelated"}, "No module named 'unrelated'"),
        ({**torch_files(), "torch/utils/data.py": "import sys\nprint(sys.prefix)\n"}, ""),
    ],
    ids=["import fails", "crashes", "exits", "old", "no gloo", "works for the caller alone", "prints"],
)
def test_torch_that_does_not_work_is_not_taken(caller: Caller, files: dict[str, str], reason: str) -> None:
    write(caller.site, files)
    said = caller.provide()
    if not reason:
        assert caller.pip_calls() == [OTHERS]
        return
    assert "is not taken: " in said
    assert reason in said
    assert caller.pip_calls() == [OTHERS, ["install", "torch==2.13.0"]]
    assert caller.asks("import torch; print(torch.__version__)") == "2.13.0"
    assert not (caller.venv / "torch-of-caller").exists()
    assert not (caller.venv / "bin/torchrun").exists()


def test_torch_that_is_asked_for_is_installed(caller: Caller) -> None:
    write(caller.site, torch_files())
    caller.provide()
    caller.provide("TORCH=torch==2.9.1")
    assert caller.pip_calls()[1:] == [OTHERS, ["install", "torch==2.9.1"]]
    assert caller.asks("import torch; print(torch.__version__)") == "2.9.1"
    assert not caller.stamp().exists()
    assert (caller.site / "torch/distributed/run.py").read_text() == RUN  # links were removed, not what they lead to


def test_another_index_is_asked(caller: Caller) -> None:
    write(caller.site, torch_files())
    url = "https://example.org/100%25/whl/cpu"
    said = caller.provide(f"TORCH_INDEX={url}")
    assert caller.pip_calls() == [OTHERS, ["install", "--index-url", url, "torch==2.13.0"]]
    assert f"torch==2.13.0 comes from {url}; pip names each file and its size" in said


def test_failure_of_pip_leaves_no_stamp(caller: Caller) -> None:
    done = caller.make("torch", PIP_FAILS="torch==2.13.0")
    assert done.returncode == 2
    assert "pip install torch==2.13.0: exit code 23" in done.stderr
    assert not caller.stamp().exists()


@pytest.mark.parametrize(("target", "then"), [("demo", "examples/train_ddp.py"), ("test", "-m pytest")])
def test_demo_and_test_need_torch_first(caller: Caller, target: str, then: str) -> None:
    planned = caller.make("-n", target).stdout
    assert -1 < planned.index("scripts/provide_torch.py") < planned.index(then)


def test_sizes_are_those_of_the_default() -> None:
    """A figure for another version than the Makefile's would be said of nothing."""
    spec = importlib.util.spec_from_file_location("provide_torch", ROOT / "scripts/provide_torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {machine for _, machine in module.PYPI_BYTES} == {"x86_64", "aarch64"}
    for requirement, _ in module.PYPI_BYTES:
        assert f"\nTORCH ?= {requirement}\n" in makefile
    required = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'torch = ["torch>={".".join(map(str, module.OLDEST_TORCH))}"]' in required
