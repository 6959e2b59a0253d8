"""A driver that is loaded after probes have asked for it in vain is found all the same."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from pathlib import Path

from collectors.recorded import record
from collectors.test_cuda import MACHINE, machine

JOB = """
import ctypes, json
from stashtrace import _native

told = [_native.device_active() for _ in range(3)]
ctypes.CDLL("libm.so.6")  # another library: looked for again, in vain
told.append(_native.device_active())
driver = ctypes.CDLL("libcuda.so.1")
told.append(_native.device_active())  # there, and no context yet
context = ctypes.c_void_p()
failed = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)]
told.append(_native.device_active())
print(json.dumps({"told": told, "failed": failed}))
"""


def test_a_driver_that_comes_late_is_found(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("\n".join(MACHINE) + "\n", encoding="utf-8")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    variables = {"LD_LIBRARY_PATH": str(machine()), "FAKE_SCRIPT": str(tmp_path / "script")}
    done = record([sys.executable, tmp_path / "job.py"], tmp_path / "run", collectors=["cuda"], env=variables)
    said = json.loads(done.stdout)
    assert said["failed"] == [0, 0, 0]
    assert said["told"] == [False] * 5 + [True]
