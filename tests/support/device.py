"""A job on devices that are played: native doubles of CUDA, NCCL, NVML and CUPTI, and ranks that run a program text.

    run = run_ranks(2, "allreduce 10MB stream=2; sync stream=2; step", tmp_path, script="nccl.bandwidth 10GB")
    run.trace                     what the recorder wrote, loaded
    run.results()                 last line of each rank: values of ``query`` and ``elapsed``, failed calls

The statements of a program are those of tests/fakes/device_actor.cpp, the settings of a script those of tests/fakes
(each file names its double). The doubles are built once per session, into the folder that tests/native uses.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from native import native_build
from traced import ROOT, TracedRun, run_facts, run_processes

from stashtrace.record.environment import LIBRARY_PATH, preload_path, traced_environment
from stashtrace.record.options import RecordOptions

#: Name of a double -> the files that it brings.
DOUBLES = {
    "cuda": ("libcuda.so.1",),
    "cudart": ("libcudart.so.12", "libcudart.so.13"),
    "nccl": ("libnccl.so.2",),
    "nvml": ("libnvidia-ml.so.1",),
    "cupti": ("libcupti.so.13",),
}
#: What a job of the actor needs.
NEEDED = ("cuda", "cudart", "nccl", "nvml")
_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LD_PRELOAD", "LD_LIBRARY_PATH", "NCCL_PROFILER_PLUGIN")


@functools.cache
def build(target: str = "device_doubles") -> Path:
    """Build folder: the doubles below ``fakes``, the actor in ``bin``. Skips the test where there are no tools."""
    try:
        return native_build.build(ROOT / ".pytest_cache" / "d" / "native-plain", target)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def symbols_after(nccl_version: int) -> list[str]:
    """NCCL functions that a release (major * 10000 + minor * 100 + patch) does not have yet."""
    header = (ROOT / "csrc/abi/nccl_abi.h").read_text(encoding="utf-8")
    first = {name: int(number) for name, number in re.findall(r"NCCL_CALL\((nccl\w+),\s*(\d{5})", header)}
    return [name for name, number in first.items() if number > nccl_version]


def fake_environment(
    directory: Path,
    script: str = "",
    *,
    libraries: Iterable[str] = NEEDED,
    missing: Iterable[str] = (),
    nccl_version: int = 22809,
) -> dict[str, str]:
    """Variables that make a process find the doubles.

    Parameters
    ----------
    directory : Path
        Folder of the test: script, patched libraries and what the ranks share go there.
    script : str
        Settings, ``fail`` and ``delay`` lines; tests/fakes/script.h has the grammar.
    libraries : iterable of str
        Which doubles are installed; without "cuda" the machine has no driver.
    missing : iterable of str
        Symbols that the libraries shall not have, by renaming them in a copy.
    nccl_version : int
        Also takes away the symbols that came later.
    """
    directory.mkdir(parents=True, exist_ok=True)
    gone = [*missing, *symbols_after(nccl_version)]
    folder = directory / "libraries"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for double in libraries:
        for name in DOUBLES[double]:
            _install(build() / "fakes" / double / name, folder / name, gone)
    file = directory / "device.script"
    file.write_text(f"nccl.version {nccl_version}\n{script}\n", encoding="utf-8")
    shared = directory / "shared"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    calls = directory / "calls"
    calls.mkdir(exist_ok=True)
    # How calls are read that may need a current context or not: a run of all tests of devices in each reading sets it.
    reading = {name: os.environ[name] for name in ("FAKE_CONTEXT",) if name in os.environ}
    return {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_SCRIPT": str(file),
        "FAKE_SHARED": str(shared),
        "FAKE_CALLS": str(calls),
        **reading,
    }


def _install(source: Path, target: Path, missing: Sequence[str]) -> None:
    """Link a library; with symbols renamed it is a copy, in which their hashes lead nowhere."""
    data = source.read_bytes()
    patched = data
    for name in missing:
        # pncclX and ncclX share one string, so one letter takes both away.
        patched = patched.replace(name.encode() + b"\0", b"X" + name[1:].encode() + b"\0")
    if patched == data:
        target.symlink_to(source)
    else:
        target.write_bytes(patched)
        target.chmod(0o755)


def run_ranks(
    ranks: int,
    program: str | Mapping[int, str],
    directory: Path,
    script: str = "",
    *,
    traced: bool = True,
    plugin: bool = True,
    libraries: Iterable[str] = NEEDED,
    missing: Iterable[str] = (),
    nccl_version: int = 22809,
    actor: str = "device_actor",
    collectors: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 180,
    check: bool = True,
    **options: object,
) -> TracedRun:
    """Run a program on processes with one device each, and wait for them.

    Parameters
    ----------
    program : str or dict of int to str
        For all ranks, or one for each.
    actor : str
        "handle_actor" looks NCCL's functions up by dlsym.
    plugin : bool
        NCCL_PROFILER_PLUGIN names the recorder, as the launcher sets it.
    check : bool
        Fail the test if a rank does not end with 0.
    **options
        Of :class:`stashtrace.record.options.RecordOptions`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run_dir = directory / "run"
    run_dir.mkdir()
    doubles = fake_environment(
        directory,
        f"devices {ranks}\n{script}",
        libraries=libraries,
        missing=missing,
        nccl_version=nccl_version,
    )
    run_id = uuid.uuid4().hex
    foreign = ("STASHTRACE_", "CUDA_", "FAKE_")
    base = {k: v for k, v in os.environ.items() if k not in _OWN and not k.startswith(foreign)}
    base |= doubles
    if traced:
        if plugin:
            base["NCCL_PROFILER_PLUGIN"] = preload_path(LIBRARY_PATH)
        recorded = RecordOptions(collectors=collectors, **options)  # type: ignore[arg-type]
        base = traced_environment(base, recorded, run_dir=run_dir, run_id=run_id)
    base |= env or {}
    facts = run_facts(run_id, ["device_actor", "program"], base.get("STASHTRACE_COLLECTORS", "").split(","))
    ranks_of_job = []
    for rank in range(ranks):
        file = directory / f"program{rank}.txt"
        file.write_text(program if isinstance(program, str) else program[rank], encoding="utf-8")
        own = base | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        ranks_of_job.append(([str(build() / "bin" / actor), str(file)], own))
    return run_processes(ranks_of_job, directory, facts if traced else None, timeout_s=timeout_s, check=check)


def calls(directory: Path, library: str) -> dict[str, int]:
    """How often each entry point of a double was called, all processes of the test together."""
    total: dict[str, int] = {}
    for file in (directory / "calls").glob(f"{library}-*.txt"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, count = line.partition(" ")
            total[name] = total.get(name, 0) + int(count)
    return total
