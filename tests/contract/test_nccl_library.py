"""Calls of a real libnccl.so.2 through the hooks: the job hears what NCCL answers.

The library is one of a wheel, in this environment or in that of ``STASHTRACE_WHEELS_PYTHON``, or the one that
``STASHTRACE_NCCL_LIBRARY`` names. No GPU is needed: what is called answers without one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from collectors.test_look_ups import known_until
from contract.real_interfaces import compiler, nccl_version, need_nccl
from device import fake_environment
from traced import ROOT

from stashtrace.format.reader import open_run
from stashtrace.record.environment import traced_environment
from stashtrace.record.options import RecordOptions
from stashtrace.schema.kinds import CollectiveOp, NcclFlag

PROGRAM = """
#include <cstdio>
#include "abi/nccl_abi.h"
using namespace stashtrace::nccl;
extern "C" {
function::ncclGetVersion ncclGetVersion; function::ncclGetUniqueId ncclGetUniqueId;
function::ncclAllReduce ncclAllReduce; function::ncclBcast ncclBcast; function::ncclGroupStart ncclGroupStart;
function::ncclGroupEnd ncclGroupEnd; function::ncclCommInitRank ncclCommInitRank;
function::ncclCommDestroy ncclCommDestroy;
}
int main() {
  int version = 0;
  UniqueId id = {};
  Comm comm = nullptr;
  std::printf("%d ", ncclGetVersion(&version));
  std::printf("%d ", version);
  std::printf("%d ", ncclGetUniqueId(&id));
  bool any = false;
  for (char byte : id.bytes) any = any || byte != 0;
  std::printf("%d ", any);
  std::printf("%d ", ncclGroupStart());
  std::printf("%d ", ncclGroupEnd());
  std::printf("%d ", ncclGroupEnd());  // one too many
  std::printf("%d ", ncclAllReduce(nullptr, nullptr, 10, 7, 0, nullptr, nullptr));
  std::printf("%d ", ncclBcast(nullptr, 20, 7, 0, nullptr, nullptr));
  std::printf("%d ", ncclCommInitRank(&comm, 0, id, 0));
  std::printf("%d\\n", ncclCommDestroy(comm));
  return 0;
}
"""


@pytest.mark.parametrize("hook", [False, True], ids=["plain", "lookup_hook"])
@pytest.mark.parametrize("driver", ["this_machine", "doubled"])
def test_real_libraries_behind_the_hooks(driver: str, hook: bool, tmp_path: Path) -> None:
    for number, library in enumerate(need_nccl()):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_library(library, driver, hook, folder)


def check_library(library: Path, driver: str, hook: bool, folder: Path) -> None:
    source, program = folder / "program.cpp", folder / "program"
    source.write_text(PROGRAM, encoding="utf-8")
    subprocess.run(
        [
            compiler(),
            "-std=c++20",
            "-w",
            "-I",
            str(ROOT / "csrc"),
            "-o",
            str(program),
            str(source),
            str(library),
            f"-Wl,-rpath,{library.parent}",
        ],
        check=True,
    )
    base = {k: v for k, v in os.environ.items() if not k.startswith(("STASHTRACE_", "NCCL_")) and k != "LD_PRELOAD"}
    # A unique id opens a socket: the loopback interface is everywhere.
    base |= {"NCCL_SOCKET_IFNAME": "lo"}
    if (
        driver == "doubled"
    ):  # its static CUDA runtime looks the driver's functions up, and is refused what begins a device
        base |= fake_environment(folder / "doubles", f"driver {known_until() - 10}", libraries=["cuda"])
    run_dir = folder / "run"
    run_dir.mkdir()
    traced = traced_environment(
        base, RecordOptions(collectors=("nccl", "cuda"), lookup_hook=hook), run_dir=run_dir, run_id="1"
    )
    bare = subprocess.run([str(program)], env=base, capture_output=True, text=True, check=True, timeout=180)
    seen = subprocess.run([str(program)], env=traced, capture_output=True, text=True, check=True, timeout=180)
    assert seen.stdout == bare.stdout
    answers = [int(word) for word in seen.stdout.split()]
    assert answers[:6] == [0, nccl_version(library), 0, 1, 0, 0]
    assert all(code in (4, 5) for code in answers[6:9]), "refused as NCCL refuses it"
    (process,) = open_run(run_dir).processes
    calls = process.load().records["nccl_call"].rows
    assert [(CollectiveOp(r["op_code"]).name, int(r["status_code"])) for r in calls] == [
        ("ALL_REDUCE", answers[7]),
        ("BROADCAST", answers[8]),
    ]
    assert all(r["nccl_flags"] & NcclFlag.FAILED for r in calls)
