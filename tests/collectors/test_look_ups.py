"""Which look-ups of driver functions the look-up hook answers: each signature in its range of CUDA versions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from collectors.recorded import NATIVE, Recording, compiled, record
from device import fake_environment

from stashtrace.schema.kinds import DeviceCall

SOURCE = NATIVE.parents[2] / "csrc"
PER_THREAD = 2

#: What libcudart 12.8.90 and 13.0.96 ask for of the functions that are recorded: name, CUDA version, flags.
ASKED_BY_RUNTIMES = """
cuCtxSynchronize 2000 0
cuCtxSynchronize 13000 0
cuDevicePrimaryCtxRelease 7000 0
cuDevicePrimaryCtxReset 7000 0
cuEventDestroy 4000 0
cuEventRecord 2000 0
cuEventRecord 7000 2
cuEventRecordWithFlags 11010 0
cuEventRecordWithFlags 11010 2
cuEventSynchronize 2000 0
cuGraphLaunch 10000 0
cuGraphLaunch 10000 2
cuLaunchHostFunc 10000 0
cuLaunchHostFunc 10000 2
cuLaunchCooperativeKernel 9000 0
cuLaunchCooperativeKernel 9000 2
cuLaunchKernel 4000 0
cuLaunchKernel 7000 2
cuLaunchKernelEx 11060 0
cuLaunchKernelEx 11060 2
cuMemAlloc 3020 0
cuMemAllocManaged 6000 0
cuMemAllocPitch 3020 0
cuMemFree 3020 0
cuMemFreeHost 2000 0
cuMemHostAlloc 2020 0
cuMemHostRegister 6050 0
cuMemHostUnregister 4000 0
cuMemcpy 4000 0
cuMemcpy 7000 2
cuMemcpy2DAsync 3020 0
cuMemcpy2DAsync 7000 2
cuMemcpy2DUnaligned 3020 0
cuMemcpy2DUnaligned 7000 2
cuMemcpy3D 3020 0
cuMemcpy3D 7000 2
cuMemcpy3DAsync 3020 0
cuMemcpy3DAsync 7000 2
cuMemcpy3DPeer 4000 0
cuMemcpy3DPeer 7000 2
cuMemcpy3DPeerAsync 4000 0
cuMemcpy3DPeerAsync 7000 2
cuMemcpyAsync 4000 0
cuMemcpyAsync 7000 2
cuMemcpyDtoD 3020 0
cuMemcpyDtoD 7000 2
cuMemcpyDtoDAsync 3020 0
cuMemcpyDtoDAsync 7000 2
cuMemcpyDtoH 3020 0
cuMemcpyDtoH 7000 2
cuMemcpyDtoHAsync 3020 0
cuMemcpyDtoHAsync 7000 2
cuMemcpyHtoD 3020 0
cuMemcpyHtoD 7000 2
cuMemcpyHtoDAsync 3020 0
cuMemcpyHtoDAsync 7000 2
cuMemcpyPeer 4000 0
cuMemcpyPeer 7000 2
cuMemcpyPeerAsync 4000 0
cuMemcpyPeerAsync 7000 2
cuMemsetD2D8 3020 0
cuMemsetD2D8 7000 2
cuMemsetD2D8Async 3020 0
cuMemsetD2D8Async 7000 2
cuMemsetD8 3020 0
cuMemsetD8 7000 2
cuMemsetD8Async 3020 0
cuMemsetD8Async 7000 2
cuStreamAddCallback 5000 0
cuStreamAddCallback 7000 2
cuStreamDestroy 4000 0
cuStreamSynchronize 2000 0
cuStreamSynchronize 7000 2
cuStreamWaitEvent 3020 0
cuStreamWaitEvent 7000 2
"""


class Form(NamedTuple):
    """A line of driver_calls.def: one signature of a function, and the CUDA versions that it is given for."""

    name: str
    suffix: str
    since: int
    until: int
    per_thread: str
    per_thread_since: int
    parameters: str


def known_until() -> int:
    """The first CUDA version whose headers were not compared."""
    text = (SOURCE / "abi/cuda_abi.h").read_text(encoding="utf-8")
    found = re.search(r"kKnownUntil = (\d+)", text)
    assert found is not None
    return int(found[1])


def forms() -> list[Form]:
    """What the table lists."""
    text = (SOURCE / "collectors/cuda/driver_calls.def").read_text(encoding="utf-8")
    listed = re.findall(
        r"^LOOKED_UP\((\w+), *(\w*), *(\w+), *(\w+), *(\w*), *(\w+)((?:,[^()]*)?)\)$", text, re.MULTILINE
    )
    assert len(listed) == len(re.findall(r"^LOOKED_UP\(", text, re.MULTILINE))
    number = {"kKnownUntil": known_until()}
    return [
        Form(name, suffix, int(since), number.get(until) or int(until), per_thread, int(own), rest.lstrip(", "))
        for name, suffix, since, until, per_thread, own, rest in listed
    ]


def look_up(tmp_path: Path, asked: Iterable[tuple[str, int, int]], *arguments: str) -> tuple[list[str], Recording]:
    """ "hooked" or "passed" for each of (name, version, flags)."""
    lines = tmp_path / "asked.txt"
    lines.write_text("".join(f"{name} {version} {flags}\n" for name, version, flags in asked), encoding="utf-8")
    command: Sequence[str] = ["sh", "-c", 'exec "$0" "$@" < "$ASKED"', str(compiled("look_ups.cpp")), *arguments]
    run = record(command, tmp_path / "run", collectors=["cuda"], lookup_hook=True, env={"ASKED": str(lines)})
    return run.stdout.split(), run


def split(text: str) -> list[tuple[str, int, int]]:
    return [(name, int(version), int(flags)) for name, version, flags in map(str.split, text.strip().splitlines())]


def test_what_the_runtimes_ask_for_is_hooked(tmp_path: Path) -> None:
    asked = split(ASKED_BY_RUNTIMES)
    answers, _ = look_up(tmp_path, asked)
    assert [one for one, answer in zip(asked, answers, strict=True) if answer != "hooked"] == []


@pytest.mark.parametrize("flags", [0, 1, PER_THREAD])
def test_each_form_is_hooked_in_its_range_and_nowhere_else(tmp_path: Path, flags: int) -> None:
    first = {(f.name, f.since): f for f in forms()}
    expected = {}
    for form in forms():
        since = max(form.since, form.per_thread_since) if flags == PER_THREAD else form.since
        expected[form.name, since, flags] = "hooked"
        expected[form.name, form.until - 1, flags] = "hooked"
        before = any(f.name == form.name and f.until == form.since for f in forms()) and since == form.since
        expected[form.name, since - 1, flags] = "hooked" if before else "passed"
        next_form = (form.name, form.until) in first
        expected[form.name, form.until, flags] = "hooked" if next_form else "passed"
    answers, _ = look_up(tmp_path, expected)
    assert dict(zip(expected, answers, strict=True)) == expected


CUDA_13 = """
import ctypes as c
driver = c.CDLL("libcuda.so.1")
libc = c.CDLL(None)
libc.dlopen.restype = libc.dlsym.restype = c.c_void_p
libc.dlsym.argtypes = (c.c_void_p, c.c_char_p)
LOOK_UP = c.CFUNCTYPE(c.c_int, c.c_char_p, c.POINTER(c.c_void_p), c.c_int, c.c_uint64, c.POINTER(c.c_int))
look_up = LOOK_UP(libc.dlsym(libc.dlopen(b"libcuda.so.1", 2), b"cuGetProcAddress_v2"))
def function(name, version, *types):
    found = c.c_void_p()
    assert look_up(name, c.byref(found), version, 0, None) == 0
    return c.CFUNCTYPE(c.c_int, *types)(found.value)
context = c.c_void_p()
said = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(c.byref(context), 0)]
of_any = function(b"cuCtxSynchronize", 13000, c.c_void_p)
of_current = function(b"cuCtxSynchronize", 2000)
said += [of_any(context), of_any(0x1234), of_any(None), of_current()]
driver.cuCtxSetCurrent(context)
print(*said, of_any(None), of_current())
"""


def test_each_signature_reaches_its_function(tmp_path: Path) -> None:
    """Synchronising a context that is not current, as a CUDA 13 runtime does: the context arrives."""
    script = tmp_path / "cuda_13.py"
    script.write_text(CUDA_13, encoding="utf-8")
    doubles = fake_environment(tmp_path / "doubles")
    run = record([sys.executable, script], tmp_path / "run", collectors=["cuda"], lookup_hook=True, env=doubles)
    assert run.stdout == "0 0 0 201 201 201 0 0\n"
    rows = [row for row in run.trace.device_calls.rows() if row["call_code"] == DeviceCall.DEVICE_SYNCHRONIZE]
    assert [row["status_code"] for row in rows] == [0, 201, 201, 201, 0, 0]


def test_flags_that_are_not_known_pass_through(tmp_path: Path) -> None:
    answers, _ = look_up(tmp_path, [("cuEventRecord", 12000, 4), ("cuEventRecord", 12000, 0)])
    assert answers == ["passed", "hooked"]


def test_functions_that_are_not_recorded_pass_through(tmp_path: Path) -> None:
    names = ["cuInit", "cuEventRecordX", "cuStream", "cuMemAllocHost"]
    answers, run = look_up(tmp_path, [(name, 12000, 0) for name in names])
    assert answers == ["passed"] * len(names)
    assert list(run.directory.glob("*.stash")) == [], "nothing to say"


def test_a_function_of_a_newer_cuda_is_said_to_be_unrecorded(tmp_path: Path) -> None:
    asked = [("cuEventRecord", known_until(), 0), ("cuMemAlloc", known_until(), 0)]
    answers, run = look_up(tmp_path, asked)
    assert answers == ["passed", "passed"]
    (loss,) = [row for row in run.trace.losses.rows() if run.trace.text(row["name_code"]) == "driver_call_too_new"]
    assert "cuEventRecord" in run.trace.text(loss["advice_code"])


def test_the_look_up_without_a_status_answers_the_same(tmp_path: Path) -> None:
    asked = split(ASKED_BY_RUNTIMES)
    answers, _ = look_up(tmp_path, asked, "older")
    assert set(answers) == {"hooked"}
