"""The recorder in front of the real wheels of torch (CUDA build) and CuPy, without a GPU.

Outside the default run, since the wheels are large: ``python tests/contract/newest_wheels.py FOLDER`` makes
environments of this Python's version with them, and prints the command with ``STASHTRACE_WHEELS_PYTHON``, whose first
has these two.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from traced import ROOT

from stashtrace.record.environment import traced_environment
from stashtrace.record.options import DECLARATIONS, RecordOptions

PYTHON = os.environ.get("STASHTRACE_WHEELS_PYTHON", "").partition(os.pathsep)[0]
pytestmark = [
    pytest.mark.wheels,
    pytest.mark.skipif(not PYTHON, reason="STASHTRACE_WHEELS_PYTHON names no environment with the wheels"),
]

TORCH = """
import json, torch
assert torch.version.cuda, "this torch is no CUDA build"
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(16):
    layer(torch.ones(4, 8)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
if PROFILED:
    with torch.profiler.profile(activities=list(torch.profiler.ProfilerActivity.__members__.values())[:2]) as profile:
        layer(torch.ones(4, 8))
facts = {"unique_id": len(torch.cuda.nccl.unique_id()), "nccl": torch.cuda.nccl.version(),
         "cuda": torch.version.cuda, "gpu": torch.cuda.is_available(),
         # Through libtorch_python's references, past our hook, into the real libcudart, which refuses a null pointer.
         "refused": [int(torch._C._cudart.cudaHostRegister(0, 4096, 0)), int(torch._C._cudart.cudaHostUnregister(0))]}
print(json.dumps(facts))
"""
CUPY = """
import json, cupy
from cupy.cuda import nccl
print(json.dumps({"unique_id": len(nccl.get_unique_id()), "nccl": nccl.get_version(), "version": cupy.__version__}))
"""


def run_python(script: str, folder: Path, *, traced: bool, **variables: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    file = folder / "script.py"
    file.write_text(script, encoding="utf-8")
    base = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV")}
    base |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if traced:
        base = traced_environment(base, RecordOptions(kernels_steps="2:4"), run_dir=folder, run_id="1")
    done = subprocess.run(
        [PYTHON, str(file)], env=base | variables, capture_output=True, text=True, timeout=500, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def has(module: str) -> bool:
    """Whether the environment has a package, without importing it here."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return bool(PYTHON) and subprocess.run([PYTHON, "-c", code]).returncode == 0


def answers(script: str, module: str, folder: Path, **variables: str) -> tuple[dict[str, Any], str]:
    """What the script prints with the recorder, which is what it prints without; and stderr."""
    if not has(module):
        pytest.skip(f"{module} is not in the environment of STASHTRACE_WHEELS_PYTHON")
    folder.mkdir(exist_ok=True)
    plain = run_python(script, folder / "plain", traced=False, **variables)
    recorded = run_python(script, folder / "traced", traced=True, **variables)
    assert json.loads(recorded.stdout) == json.loads(plain.stdout)
    return json.loads(recorded.stdout), recorded.stderr


class Binding(NamedTuple):
    """A reference that the loader bound while the script ran."""

    user: str
    library: str
    name: str
    version: str


def bindings(folder: Path) -> set[Binding]:
    """What LD_DEBUG=bindings wrote of processes that were recorded, libraries by their file names."""
    pattern = re.compile(r"binding file (\S+) \[0\] to (\S+) \[0\]: normal symbol `(\w+)'(?: \[([^]]*)\])?")
    found = set()
    for file in folder.glob("bindings.*"):
        text = file.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines() if "/libstashtrace.so [0]" in text else []:
            if match := pattern.search(line):
                user, library, name, version = match.groups(default="")
                found.add(Binding(Path(user).name, Path(library).name, name, version))
    return found


def test_torch_works_under_the_recorder(tmp_path: Path) -> None:
    facts, _ = answers(TORCH.replace("PROFILED", "False"), "torch", tmp_path)
    assert facts["unique_id"] == 128
    assert 0 not in facts["refused"]
    assert DECLARATIONS["kernels_steps"].default != "2:4"


def test_cupy_works_under_the_recorder(tmp_path: Path) -> None:
    facts, _ = answers(CUPY, "cupy", tmp_path)
    assert isinstance(facts["nccl"], int)
    assert facts["nccl"] >= 22707


def test_the_hooks_are_reached_from_torch(tmp_path: Path) -> None:
    facts, _ = answers(
        TORCH.replace("PROFILED", "True"),
        "torch",
        tmp_path,
        LD_DEBUG="bindings",
        LD_DEBUG_OUTPUT=str(tmp_path / "bindings"),
    )
    # What its libraries import and we export must be ours, whatever the symbol's version says.
    wanted = {name for name in exported() if re.match("(__)?cuda|cupti|nccl", name)}
    of_torch = {one for one in bindings(tmp_path) if one.user.startswith(("libtorch", "libc10")) and one.name in wanted}
    assert {one for one in of_torch if one.library != "libstashtrace.so"} == set()
    assert {"cuptiSubscribe", "ncclAllReduce", "cudaMemcpyAsync"} <= {one.name for one in of_torch}
    major = facts["cuda"].partition(".")[0]
    versions = {one.version for one in of_torch if one.user == "libtorch_cuda.so" and one.name.startswith("cuda")}
    assert versions == {f"libcudart.so.{major}"}


def test_the_hooks_are_reached_from_cupy(tmp_path: Path) -> None:
    wanted = {name for name in exported() if name.startswith("nccl")}
    if not wanted:
        pytest.skip("this build has no hooks of NCCL")
    answers(CUPY, "cupy", tmp_path, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "bindings"))
    assert {one.name for one in bindings(tmp_path) if one.library == "libstashtrace.so"} & wanted


def exported() -> set[str]:
    """Names on the list of what the library shows."""
    text = (ROOT / "csrc/hooks/exports.map").read_text(encoding="utf-8")
    return {word.strip() for word in text.replace("\n", ";").split(";") if word.strip().isidentifier()}
