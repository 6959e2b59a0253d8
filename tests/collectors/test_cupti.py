"""Deep mode against a double of libcupti: what is recorded, and that it gives way and fails without harm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from played_cupti import PRELUDE, build_libraries
from traced import ROOT, TracedRun, run_traced

from stashtrace.format.reader import open_run
from stashtrace.schema.kinds import DeviceClock, DeviceWork
from stashtrace.schema.trace import RawProcess

REPORT = """
settle()
print(json.dumps(cupti.fake_cupti_state()))
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libraries(tmp_path_factory.mktemp("fake_cupti"))


def run(
    libraries: Path, folder: Path, body: str, *, steps: str | None = "2:4", script: Sequence[str] = (), **env: str
) -> TracedRun:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fake.txt").write_text("\n".join(script) + "\n", encoding="utf-8")
    variables = {
        "LD_LIBRARY_PATH": str(libraries),
        "FAKE_SCRIPT": str(folder / "fake.txt"),
        "STASHTRACE_SAMPLE_MS": "20",
    } | env
    return run_traced(PRELUDE + body, folder / "job", env=variables, kernels_steps=steps)


def processes(directory: Path) -> list[RawProcess]:
    """The rows of each process, as they were written."""
    return [file.load() for file in open_run(directory).processes]


def raw(done: TracedRun) -> RawProcess:
    """The rows of the only process."""
    (found,) = processes(done.directory)
    return found


def names(process: RawProcess) -> list[str]:
    if "kernel" not in process.records:
        return []
    return [process.strings.get(int(i), "") for i in process.records["kernel"].rows["name_id"]]


def reasons(done: TracedRun) -> dict[str, int]:
    return {reason: count for collector, reason, count in done.losses() if collector == "cupti"}


def test_records_the_window_and_nothing_else(libraries: Path, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, "steps(7)\n" + REPORT)
    process = raw(done)
    assert names(process) == ["step2", "step3"]
    rows = process.records["kernel"].rows
    assert (rows["end_device_ns"] - rows["begin_device_ns"]).tolist() == [50_000, 50_000]
    assert set(rows["device_index"].tolist()) == {0}
    assert set(rows["stream_index"].tolist()) == {7}
    assert set(rows["work_code"].tolist()) == {DeviceWork.KERNEL}
    assert done.results() == [0], "unsubscribed, all kinds disabled, thread ids as they were"
    assert reasons(done) == {}
    assert done.facts()["kernels_window"] == "2:4 2"


def test_launches_and_clock_readings_lie_on_the_clock_of_the_records(libraries: Path, tmp_path: Path) -> None:
    body = """
_native.kernels_step(0)
before = _native.now_ticks()
launch("one", delay_us=500)
after = _native.now_ticks()
time.sleep(0.05)
_native.kernels_step(2)
settle()
print(json.dumps([before, after, _native.tick_hz(), threading.get_native_id()]))
"""
    done = run(libraries, tmp_path, body, steps="0:1")
    before, after, hz, tid = done.results()[0]
    process = raw(done)
    (row,) = process.records["kernel"].rows
    assert before <= row["launch_ticks"] <= after
    assert (row["return_ticks"] - row["launch_ticks"]) / hz == pytest.approx(4e-6, rel=0.1)
    assert row["tid"] == tid
    clock = process.records["device_clock"].rows
    assert set(clock["clock_code"].tolist()) == {DeviceClock.CUPTI}
    assert set(clock["device_index"].tolist()) == {0}
    assert len(clock) >= 3, "at the window's begin, at its end and between"
    assert (clock["after_ticks"] >= clock["before_ticks"]).all()
    # The kernel began 500 us after its launch: so the readings must say.
    clock = np.sort(clock, order="device_ns")
    origin_ns, origin = int(clock["device_ns"][0]), int(row["launch_ticks"])
    middle = (clock["before_ticks"].astype(np.int64) - origin + clock["after_ticks"].astype(np.int64) - origin) / 2
    begin = np.interp(int(row["begin_device_ns"]) - origin_ns, clock["device_ns"] - origin_ns, middle)
    widest = int((clock["after_ticks"] - clock["before_ticks"]).max())
    assert begin / hz == pytest.approx(500e-6, abs=20e-6 + widest / 2 / hz)


def test_distinguishes_the_kinds_of_work(libraries: Path, tmp_path: Path) -> None:
    body = """
_native.kernels_step(1); _native.kernels_step(2)
launch("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE")
launch("void cutlass::Kernel2<nccl_like>()", device=1, node=99)
launch(kind=COPY, detail=1, size=1 << 20)
launch(kind=PEER, detail=10, size=64)
launch(kind=MEMSET, size=256)
launch(kind=SYNC, detail=3)
time.sleep(0.01)
_native.kernels_step(4)
"""
    rows = raw(run(libraries, tmp_path, body + REPORT)).records["kernel"].rows
    work = DeviceWork
    assert rows["work_code"].tolist() == [
        work.COMMUNICATION,
        work.KERNEL,
        work.COPY,
        work.COPY,
        work.MEMSET,
        work.SYNCHRONIZATION,
    ]
    assert rows["copy_code"].tolist() == [0, 0, 1, 4, 0, 0]
    assert rows["size_bytes"].tolist() == [0, 0, 1 << 20, 64, 256, 0]
    assert rows["device_index"].tolist() == [0, 1, 0, 0, 0, 0]
    assert rows["graph_key"].tolist() == [0, 99, 0, 0, 0, 0]


def test_the_loaded_run_has_names_launches_and_the_common_clock(libraries: Path, tmp_path: Path) -> None:
    body = """
_native.kernels_step(0)
launch("_ZN2at6native3addIfEEvi", duration_us=300, delay_us=5000)
launch("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", delay_us=5000)
time.sleep(0.05)
_native.kernels_step(1)
"""
    done = run(libraries, tmp_path, body + REPORT, steps="0:1")
    kernels = done.trace.kernels
    assert done.texts(kernels, "name_code")[0] == "void at::native::add<float>(int)"
    assert done.texts(kernels, "name_code")[1].startswith("ncclDevKernel_AllReduce")
    assert kernels["end_ns"][0] - kernels["begin_ns"][0] == pytest.approx(300_000, abs=1000)
    assert ((kernels["launch_ns"] > 0) & (kernels["launch_ns"] < kernels["begin_ns"])).all()


@pytest.mark.parametrize("version", [18, 24, 28, 130000, 130500])
def test_reads_the_records_of_each_version(libraries: Path, tmp_path: Path, version: int) -> None:
    done = run(libraries, tmp_path, "steps(6)\n" + REPORT, script=[f"cupti_version {version}"])
    assert names(raw(done)) == ["step2", "step3"]
    assert done.facts()["cupti_version"] == str(version)


def test_a_flush_that_takes_long_does_not_move_the_window(libraries: Path, tmp_path: Path) -> None:
    # The drainer is inside a flush at nearly every step, among them the window's first and the one behind it.
    done = run(
        libraries,
        tmp_path,
        "steps(7)\n" + REPORT,
        script=["delay cuptiActivityFlushAll 300ms"],
        STASHTRACE_SAMPLE_MS="10",
    )
    assert names(raw(done)) == ["step2", "step3"]


@pytest.mark.parametrize("version", [17, 29, 140000])
def test_refuses_a_version_it_does_not_know(libraries: Path, tmp_path: Path, version: int) -> None:
    done = run(libraries, tmp_path, "steps(6)\n" + REPORT, script=[f"cupti_version {version}"])
    assert "cupti_version_unknown" in reasons(done)
    assert names(raw(done)) == []
    assert str(version) in done.stderr[0]
    assert done.results() == [0]


def test_gives_way_to_a_subscriber_that_was_there_first(libraries: Path, tmp_path: Path) -> None:
    done = run(
        libraries, tmp_path, "steps(6)\nprint(json.dumps(cupti.fake_cupti_state()))", script=["cupti_subscriber other"]
    )
    assert "another_profiler" in reasons(done)
    assert "another profiler" in done.stderr[0]
    assert done.results() == [1], "the other one still has its place"


@pytest.mark.parametrize("variable", ["CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"])
def test_does_not_touch_cupti_under_an_injected_profiler(libraries: Path, tmp_path: Path, variable: str) -> None:
    done = run(
        libraries,
        tmp_path,
        "steps(6)\nopen('touched', 'w').close()",
        FAKE_CALLS=str(tmp_path),
        **{variable: "somebody"},
    )
    assert "another_profiler" in reasons(done)
    (counts,) = tmp_path.glob("cupti-*.txt")
    assert [line for line in counts.read_text().splitlines() if not line.endswith(" 0")] == []


def test_leaves_before_a_profiler_that_comes_later_subscribes(libraries: Path, tmp_path: Path) -> None:
    body = """
everybody = ctypes.CDLL(None)
callbacks = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda *_: None)
steps(3)
time.sleep(0.01)
handle = ctypes.c_void_p()
results = [everybody.cuptiSubscribe(ctypes.byref(handle), callbacks, None)]
results.append(cupti.fake_cupti_state())
results.append(everybody.cuptiActivityRegisterCallbacks(callbacks, callbacks))
steps(3, first=3)
print(json.dumps(results))
"""
    done = run(libraries, tmp_path, body)
    assert done.results() == [[0, 1, 0]], "its call succeeded, and it is alone"
    assert names(raw(done)) == ["step2"], "what was recorded so far is kept"
    assert "another_profiler" in reasons(done)


def test_steps_aside_for_the_probes(libraries: Path, tmp_path: Path) -> None:
    body = "steps(3)\ntime.sleep(0.01)\n_native.kernels_step_aside('torch.profiler')\n"
    done = run(libraries, tmp_path, body + "print(json.dumps(cupti.fake_cupti_state()))")
    assert done.results() == [0]
    assert names(raw(done)) == ["step2"]
    assert "torch.profiler" in done.stderr[0]


@pytest.mark.torch
def test_gives_way_to_torchs_profiler_and_takes_its_steps_from_updates(libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = """
import torch
from types import SimpleNamespace
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def train(count):
    for _ in range(count):
        loss = layer(torch.ones(1, 2)).sum()
        launch("work")
        loss.backward(); optimizer.step(); time.sleep(0.005)
train(4)
time.sleep(0.05)
def prepare(*activities):
    try: torch.autograd.profiler.profile._prepare_trace(SimpleNamespace(kineto_activities=activities))
    except AttributeError: return cupti.fake_cupti_state() & 1
held = prepare(torch.profiler.ProfilerActivity.CPU), prepare(torch.profiler.ProfilerActivity.CUDA)
train(3)
print(json.dumps(held))
"""
    done = run(libraries, tmp_path, body, steps="2:6")
    assert done.results() == [[1, 0]], "kept while only the CPU is profiled, given up for the GPU"
    assert names(raw(done)) == ["work"] * 2, "steps 2 and 3"
    assert "torch.profiler" in done.stderr[0]


def test_counts_what_found_no_buffer(libraries: Path, tmp_path: Path) -> None:
    # Between the first enabling and the window nothing is kept, so that the flood leaves no rows. The step that opens
    # the window does not wait for a flush, so it comes when all is read, and long before the next flush.
    body = """
_native.kernels_step(1)
cupti.fake_cupti_flood(KERNEL, 1_200_000)
cupti.fake_cupti_unread.restype = ctypes.c_uint64
while cupti.fake_cupti_unread(): time.sleep(0.01)
time.sleep(0.1)
_native.kernels_step(2)
launch("kept")
time.sleep(0.02)
_native.kernels_step(4)
"""
    done = run(
        libraries,
        tmp_path,
        body + REPORT,
        script=["delay cuptiActivityGetNumDroppedRecords 60ms"],
        STASHTRACE_SAMPLE_MS="1000",
    )
    assert names(raw(done)) == ["kept"]
    assert reasons(done)["cupti_dropped"] > 50_000


CALLS = {
    "cuptiGetVersion": "cupti_failed",
    "cuptiGetTimestamp": "cupti_failed",
    "cuptiSubscribe": "cupti_failed",
    "cuptiActivityRegisterCallbacks": "cupti_failed",
    "cuptiActivityEnable": "cupti_failed",
    "cuptiActivityFlushAll": "cupti_flush_failed",
    "cuptiActivityGetNextRecord": "cupti_buffer_unread",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_reported_and_the_job_goes_on(libraries: Path, tmp_path: Path, call: str) -> None:
    end = "print(json.dumps(cupti.fake_cupti_state()))" if call == "cuptiActivityFlushAll" else REPORT
    body = "steps(6)\ntime.sleep(1.5)\n" if call == "cuptiActivityFlushAll" else "steps(6)\n"
    done = run(libraries, tmp_path, body + end, script=[f"fail {call} 999"])
    assert CALLS[call] in reasons(done)
    assert done.results() == [0]


@pytest.mark.parametrize(
    "call", ["cuptiUnsubscribe", "cuptiActivityDisable", "cuptiActivityGetNumDroppedRecords", "cuptiSetThreadIdType"]
)
def test_a_call_that_fails_without_harm_loses_nothing(libraries: Path, tmp_path: Path, call: str) -> None:
    done = run(libraries, tmp_path, "steps(6)\ntime.sleep(1.5)\nprint(json.dumps(0))", script=[f"fail {call} 999"])
    assert names(raw(done))[:2] == ["step2", "step3"]


def test_a_kind_that_is_refused_is_named(libraries: Path, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, "steps(6)\n" + REPORT, script=["cupti_refuse 38"])
    assert names(raw(done)) == ["step2", "step3"]
    assert "cupti_kind_missing" in reasons(done)


def test_not_permitted_is_said(libraries: Path, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, "steps(6)\n" + REPORT, script=["fail cuptiActivityEnable 35"])
    assert "cupti_not_permitted" in reasons(done)


def test_what_the_window_holds_at_exit_is_flushed(libraries: Path, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, "steps(3)\nlaunch('late', duration_us=60_000_000)\nlaunch('after')")
    assert sorted(names(raw(done))) == ["after", "step2"]
    assert reasons(done) == {"cupti_incomplete": 1}


def test_works_without_a_drainer(libraries: Path, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, "steps(7)\n" + REPORT, STASHTRACE_DRAINER="self")
    assert names(raw(done)) == ["step2", "step3"]


def test_a_forked_child_leaves_cupti_alone(libraries: Path, tmp_path: Path) -> None:
    body = """
steps(3)
time.sleep(0.01)
child = os.fork()
if child == 0:
    for step in range(3, 6): _native.kernels_step(step)
    os._exit(0 if cupti.fake_cupti_state() & 1 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
steps(3, first=3)
settle()
print(json.dumps([code, cupti.fake_cupti_state()]))
"""
    done = run(libraries, tmp_path, body)
    assert done.results() == [[0, 0]]
    kernels = [name for p in processes(done.directory) for name in names(p)]
    assert kernels == ["step2", "step3"]


def test_a_window_that_never_comes_is_said(libraries: Path, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, "steps(3)", steps="100:102", FAKE_CALLS=str(tmp_path))
    trace = done.trace
    assert "kernels_window_not_reached" in {trace.text(code) for code in trace.losses["name_code"]}
    missed = run(libraries, tmp_path / "missed", "steps(3, first=50)", steps="2:4")
    assert "kernels_window_missed" in reasons(missed)


def test_graphs_may_be_kept_whole(libraries: Path, tmp_path: Path) -> None:
    body = "_native.kernels_step(0)\nlaunch(kind=GRAPH, node=5)\ntime.sleep(0.01)\n_native.kernels_step(1)\n" + REPORT
    (tmp_path / "fake.txt").write_text("", encoding="utf-8")
    (tmp_path / "job").mkdir()
    script = tmp_path / "job/script.py"
    script.write_text(PRELUDE + body, encoding="utf-8")
    from stashtrace.record.environment import traced_environment
    from stashtrace.record.options import RecordOptions

    base = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}
    base |= {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(libraries), "STASHTRACE_SAMPLE_MS": "20"}
    options = RecordOptions(kernels="graphs", kernels_steps="0:1")
    env = traced_environment(base, options, run_dir=tmp_path / "job", run_id="1")
    done = subprocess.run(["python3", str(script)], env=env, capture_output=True, text=True, timeout=180, check=True)
    assert json.loads(done.stdout) == 0
    kernels = [p.records["kernel"].rows for p in processes(tmp_path / "job") if "kernel" in p.records]
    assert kernels[0]["work_code"].tolist() == [DeviceWork.GRAPH]
    assert kernels[0]["graph_key"].tolist() == [5]


def test_without_a_libcupti_or_a_driver_the_job_goes_on(tmp_path: Path) -> None:
    body = "from stashtrace import _native\nfor i in range(6): _native.kernels_step(i)\n"
    done = run_traced(body, tmp_path, kernels_steps="2:4", env={"LD_LIBRARY_PATH": ""})
    # Without the double a machine has no libcupti, or a real one without a driver.
    assert set(reasons(done)) & {"no_libcupti", "no_device"}
    assert done.exit_codes == [0]


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"FAKE_DEVICES": "0"}, "no_device"),
        ({"FAKE_DEVICES_ERROR": "3"}, "no_device"),  # cuInit was not called
        ({"FAKE_DRIVER_VERSION": "12080"}, "driver_too_old"),
    ],
)
def test_cupti_is_not_touched_where_it_could_not_attach(
    libraries: Path, tmp_path: Path, driver: dict[str, str], reason: str
) -> None:
    done = run(libraries, tmp_path, "steps(6)\nprint(json.dumps(0))", FAKE_CALLS=str(tmp_path), **driver)
    assert (done.results(), reasons(done)) == ([0], {reason: 0})
    (counts,) = tmp_path.glob("cupti-*.txt")
    assert [line for line in counts.read_text().splitlines() if not line.endswith(" 0")] == []


def test_cupti_is_not_touched_in_a_process_without_a_driver(libraries: Path, tmp_path: Path) -> None:
    body = "import ctypes; cupti = ctypes.CDLL('libcupti.so.13')\nfrom stashtrace import _native\n"
    body += "for i in range(6): _native.kernels_step(i)\n"
    variables = {"LD_LIBRARY_PATH": str(libraries), "FAKE_CALLS": str(tmp_path)}
    done = run_traced(body, tmp_path / "job", kernels_steps="2:4", env=variables)
    assert (done.exit_codes, reasons(done)) == ([0], {"no_device": 0})
    (counts,) = tmp_path.glob("cupti-*.txt")
    assert [line for line in counts.read_text().splitlines() if not line.endswith(" 0")] == []


def test_is_off_unless_asked_for(libraries: Path, tmp_path: Path) -> None:
    done = run(
        libraries,
        tmp_path,
        "steps(20)\nprint(json.dumps(cupti.fake_cupti_state()))",
        steps=None,
        FAKE_CALLS=str(tmp_path),
    )
    assert done.results() == [0]
    (counts,) = tmp_path.glob("cupti-*.txt")
    assert [line for line in counts.read_text().splitlines() if not line.endswith(" 0")] == []


ASKED = """
def until(first, last):
    for step in range(first, last):
        _native.kernels_step(step)
        launch(f"step{step}")
        time.sleep(0.004)
def ask(step, first, end):
    while True:
        answer = _native.kernels_window(first, end)
        if answer: return answer
        time.sleep(0.02)
"""


def test_steps_are_recorded_as_they_are_asked_for(libraries: Path, tmp_path: Path) -> None:
    """Twice, each with a separate fact; CUPTI is given back in between, and afterwards."""
    body = """
answers = [ask(0, 2, 4)]
until(0, 6)
settle()
answers.append(cupti.fake_cupti_state())
answers.append(ask(6, 8, 9))
until(6, 12)
settle()
print(json.dumps([*answers, cupti.fake_cupti_state()]))
"""
    done = run(libraries, tmp_path, ASKED + body, steps=None, STASHTRACE_FOLLOWED="1")
    assert done.results() == [[1, 0, 1, 0]]
    assert names(raw(done)) == ["step2", "step3", "step8"]
    assert done.facts()["kernels_window"] == "8:9 1", "the newest one"
    assert done.facts()["kernels_windows_count"] == "2"
    clock = raw(done).records["device_clock"].rows
    assert (np.diff(np.sort(clock["device_ns"])) > 0).all()
    assert reasons(done) == {}


def test_a_second_request_waits_for_the_end_of_the_first(libraries: Path, tmp_path: Path) -> None:
    body = """
answers = [_native.kernels_window(1, 3)]
until(0, 2)
answers.append(_native.kernels_window(2, 5))
until(2, 6)
print(json.dumps(answers))
"""
    done = run(libraries, tmp_path, ASKED + body, steps=None, STASHTRACE_FOLLOWED="1")
    assert done.results() == [[1, 0]]
    assert names(raw(done)) == ["step1", "step2"]


@pytest.mark.parametrize(("at", "kept"), [(1, []), (2, []), (3, ["step2"]), (4, ["step2", "step3"])])
def test_it_ends_early_where_the_probes_say_so(libraries: Path, tmp_path: Path, at: int, kept: list[str]) -> None:
    """Before it has begun there is nothing to end, and no fact that says so."""
    body = f"""
ask(0, 2, 100)
until(0, {at})
while not _native.kernels_end({at}): time.sleep(0.01)
until({at}, {at + 3})
settle()
print(json.dumps(cupti.fake_cupti_state()))
"""
    done = run(libraries, tmp_path, ASKED + body, steps=None, STASHTRACE_FOLLOWED="1")
    assert done.results() == [0]
    assert names(raw(done)) == kept
    assert done.facts().get("kernels_window", "") == (f"2:{at} {len(kept)}" if kept else "")
    assert reasons(done) == {}


def test_nothing_is_opened_in_a_job_that_nobody_follows(libraries: Path, tmp_path: Path) -> None:
    body = "answer = _native.kernels_window(1, 3)\nuntil(0, 5)\nprint(json.dumps(answer))"
    done = run(libraries, tmp_path, ASKED + body, steps=None)
    assert done.results() == [2]
    assert names(raw(done)) == []


def test_a_profiler_that_was_here_before_keeps_cupti(libraries: Path, tmp_path: Path) -> None:
    """It may come back, and would get buffers that it did not give."""
    body = """
everybody = ctypes.CDLL(None)
callbacks = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda *_: None)
handle = ctypes.c_void_p()
everybody.cuptiSubscribe(ctypes.byref(handle), callbacks, None)
cupti.cuptiUnsubscribe(handle)
answer = _native.kernels_window(1, 3)
until(0, 5)
print(json.dumps(answer))
"""
    done = run(libraries, tmp_path, ASKED + body, steps=None, STASHTRACE_FOLLOWED="1")
    assert done.results() == [2]
    assert names(raw(done)) == []
    assert "another_profiler" in reasons(done)


def test_a_job_without_a_device_yet_can_be_asked_again(libraries: Path, tmp_path: Path) -> None:
    body = """
ask(0, 1, 2)
until(0, 3)
os.environ["FAKE_DEVICES"] = "1"
ctypes.CDLL(None).setenv(b"FAKE_DEVICES", b"1", 1)
ask(3, 4, 5)
until(3, 7)
settle()
print(json.dumps(0))
"""
    done = run(libraries, tmp_path, ASKED + body, steps=None, STASHTRACE_FOLLOWED="1", FAKE_DEVICES="0")
    assert "no_device" in reasons(done)
    assert names(raw(done)) == ["step4"]


def test_a_forked_child_cannot_be_asked(libraries: Path, tmp_path: Path) -> None:
    body = """
ask(0, 1, 2)
until(0, 4)
settle()
child = os.fork()
if child == 0: os._exit(_native.kernels_window(5, 6))
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""
    done = run(libraries, tmp_path, ASKED + body, steps=None, STASHTRACE_FOLLOWED="1")
    assert done.results() == [2]
