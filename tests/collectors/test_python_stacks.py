"""python_stacks: what a thread executes, as the interpreter itself says it; what is off is off."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from collectors.recorded import compiled, record
from lost_rows import write_without
from other_pythons import RECORDS, VERSIONS, interpreter, run_script
from read_stacks import BEGIN, Stacks

from stashtrace.analysis.findings.rules.trust import trust
from stashtrace.schema.kinds import StackCause, StackFlag

PYTHONS = pytest.mark.parametrize("minor", [minor for minor in VERSIONS if minor >= RECORDS])
FAST = {"STASHTRACE_STACK_HZ": "1000"}

#: The interpreter is asked in the same line. Of a stack that is too deep, the innermost frames are reported.
COMPARED = """
    import asyncio, itertools, json, runpy
    from stashtrace.probes.stacks import _said
    out = {}

    def compare(place):
        frame = sys._getframe()
        read, said = native.own_stack(), _said(frame)
        out[place] = [read is not None and read == said[: len(read)], len(read or ()), len(said)]
        return True
"""
ODD_FRAMES = (
    COMPARED
    + """
    def generator():
        for _ in range(2):
            yield compare("generator")
    assert all(itertools.chain(generator(), generator()))

    async def inner():
        await asyncio.sleep(0)
        return compare("coroutine")
    async def outer():
        return [value async for value in asynchronous()] + [await inner()]
    async def asynchronous():
        compare("asynchronous generator")
        yield await inner()
    asyncio.run(outer())

    def deep(n):
        return deep(n - 1) if n else compare("deep")
    sys.setrecursionlimit(20_000)
    threading.stack_size(1 << 29)
    thread = threading.Thread(target=deep, args=(10_000,))
    thread.start()
    thread.join()

    (lambda: [compare("lambda") for _ in range(1)])()
    class Body:
        compare("class body")
        def __del__(self):
            compare("finalizer")
    body = Body()
    del body
    sorted([2, 1], key=lambda n: compare("called by C"))
    exec("compare('no file')")
    exec(compile("def f():\\n\\n  compare('odd name')\\nf()", "/x/caf\\u00e9 \\u4e2d \\U0001f40d.py", "exec"))
    exec(compile("compare('bytes')", os.fsdecode(b"/x/\\xff\\xfe.py"), "exec"))
    exec(compile("compare('surrogate')", "/x/\\ud800.py", "exec"))
    exec(compile("compare('long')", "/" + "long/" * 800 + "x.py", "exec"))
    exec(compile("def \\u00e9\\u4e2d():\\n  compare('name')\\n\\u00e9\\u4e2d()", "x.py", "exec"))
    exec((lambda: compare("nameless")).__code__.replace(co_name=""))
    exec("\\n" * 70_000 + "compare('far line')")
    exec("def wide():\\n  x = 1; y = [" + "x," * 20_000 + "]; compare('wide')\\nwide()")

    def tracer(frame, event, argument):
        return tracer
    for watch in (sys.settrace, sys.setprofile):
        watch(tracer)
        compare(watch.__name__)
        next(generator())
        watch(None)
    with open("module.py", "w") as file:
        file.write("compare('module')")
    runpy.run_path("module.py", {"compare": compare})
    print(json.dumps(out))
"""
)


@PYTHONS
@pytest.mark.parametrize("options", [(), ("-X", "frozen_modules=on")], ids=["plain", "frozen"])
def test_stack_of_the_caller_is_that_of_the_interpreter(tmp_path: Path, minor: int, options: tuple[str, ...]) -> None:
    stdout, stderr = run_script(interpreter(minor), BEGIN + ODD_FRAMES, tmp_path / "run", options=options)
    found = json.loads(stdout)
    assert {place: facts for place, facts in found.items() if not facts[0]} == {}
    depths = {place: (read, said) for place, (_, read, said) in found.items() if read != said}
    assert depths == {"deep": (200, 10_005)}
    assert stderr == ""


#: Five scenes, each for a while; names of functions say what is allowed.
SCENES = """
    def scene_generators():
        def scene_generator(n):
            for i in range(n):
                yield i if i % 7 else sum(scene_generator(5) if n > 5 else ())
        for _ in until(0.4):
            sum(scene_generator(50))

    def scene_recursion():
        def scene_deep(n):
            return scene_deep(n - 1) if n else sum(range(500))
        for _ in until(0.4):
            scene_deep(300)

    def scene_sleeping():
        time.sleep(0.2)

    stacks.watch()
    for scene in (scene_generators, scene_recursion, scene_sleeping):
        scene()
"""
OURS = {"<module>", "until", "sum"}


@PYTHONS
def test_samples_are_of_what_ran(tmp_path: Path, minor: int) -> None:
    _, stderr = run_script(interpreter(minor), BEGIN + SCENES, tmp_path / "run", **FAST)
    assert stderr == ""
    found = Stacks(tmp_path / "run")
    assert len(found.samples) > 40
    seen = Counter(part for sample in found.samples for name in sample.names for part in name.split("."))
    assert {name for name in seen if name not in {*OURS, "<locals>"} and not name.startswith("scene_")} == set()
    assert {"scene_generator", "scene_deep", "scene_sleeping"} <= seen.keys()
    # A recursion through 300 frames within microseconds is seldom read whole on an idle machine: it is left out.
    first = next(n for n, sample in enumerate(found.samples) if any("scene_deep" in name for name in sample.names))
    bad = sum(not sample.stack or StackFlag.INNER_TORN in sample.flags for sample in found.samples[:first])
    assert bad <= 0.2 * first + 5
    for sample in found.samples:
        deep = any("scene_deep" in name for name in sample.names)
        if StackFlag.OUTER_CUT in sample.flags:
            assert deep
            assert len(sample.stack) == 64
        elif sample.stack:
            assert sample.stack[-1][0] == "<module>"
        assert [frame for frame in sample.stack[1:] if frame[1] != "<string>" or frame[2] in (0, -2)] == []
    asleep = [s for s in found.samples if any("scene_sleeping" in name for name in s.names)]
    assert sum(StackFlag.HOLDS_GIL in s.flags for s in asleep) < len(asleep) / 2
    busy = [s for s in found.samples if any("scene_generator" in name for name in s.names)]
    assert sum(StackFlag.HOLDS_GIL in s.flags for s in busy) > len(busy) / 2


LONG_CALLS = """
    reader, writer = os.pipe()

    def waits():
        os.read(reader, 1)

    def short():
        os.stat("/")

    def calls(function):
        threading.Timer(0.4, os.write, (writer, b"x")).start()
        function()

    stacks.watch()
    calls(waits)
    for _ in range(1000):
        short()
    native.note_call(0, recorder.code("StackCause", "garbage"))
"""


@PYTHONS
def test_a_long_call_has_its_stack(tmp_path: Path, minor: int) -> None:
    run_script(interpreter(minor), BEGIN + LONG_CALLS, tmp_path / "run")
    found = Stacks(tmp_path / "run")
    (span,) = (s for s in found.spans if s.cause == StackCause.IO and "waits" in s.names)
    assert span.names == ["waits", "calls", "<module>"]
    assert [line for _, _, line in span.stack] == [15, 22, 25]
    assert span.end_ns - span.begin_ns >= 10_000_000
    assert [s.names for s in found.spans if s.cause == StackCause.GARBAGE] == [["<module>"]]


def test_no_rate_has_spans_alone(tmp_path: Path) -> None:
    run_script(sys.executable, BEGIN + LONG_CALLS + SCENES, tmp_path / "run", STASHTRACE_STACK_HZ="0")
    (tmp_path / "run/run.json").write_text('{"stack_hz": 0}')
    found = Stacks(tmp_path / "run")
    assert found.samples == []
    assert any("waits" in span.names for span in found.spans)
    assert "Python functions between long calls (--stack-hz 0)" in trust(found.trace, {}).invisible


UNKNOWN = """
    from stashtrace.probes import native, process, stacks
    process.begin()
    {0}
    stacks.begin()
    stacks.watch()
    native.note_call(0, 1)
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "stacks._said = lambda frame: []",
            "its frames are not where they were in other builds of this version of Python",
        ),
        ("stacks.native.own_stack = lambda: None", "the frames of this process cannot be read"),
        ("stacks.sys.hexversion = 0x030900f0", "the frames of this version or build of Python are not known"),
    ],
)
def test_what_is_not_known_is_not_read(tmp_path: Path, change: str, reason: str) -> None:
    _, stderr = run_script(sys.executable, UNKNOWN.format(change), tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert ([len(table) for table in found.tables], stderr) == ([0, 0, 0], "")
    assert f"Python functions ({reason})" in trust(found.trace, {}).invisible


NO_STACKS = """
    print("memfd" in open("/proc/self/maps").read(), [os.listdir(f"/proc/self/task/{tid}/fd") for tid in
          os.listdir("/proc/self/task") if any("memfd" in os.readlink(f"/proc/self/task/{tid}/fd/{fd}") for fd in
          os.listdir(f"/proc/self/task/{tid}/fd") if os.path.lexists(f"/proc/self/task/{tid}/fd/{fd}"))])
"""


def test_nothing_when_the_collector_is_off(tmp_path: Path) -> None:
    code = BEGIN + LONG_CALLS + SCENES + NO_STACKS
    stdout, _ = run_script(sys.executable, code, tmp_path / "run", STASHTRACE_COLLECTORS="posix_io,proc,waits", **FAST)
    found = Stacks(tmp_path / "run")
    assert ([len(table) for table in found.tables], stdout) == ([0, 0, 0], "False []\n")


def test_a_python_without_torch_has_none(tmp_path: Path) -> None:
    code = "import os, time\ntime.sleep(0.2)\nos.read(os.pipe()[0], 0)" + NO_STACKS.replace("\n    ", "\n")
    stdout, _ = run_script(sys.executable, code, tmp_path / "run", **FAST, STASHTRACE_DRAINER="thread")
    found = Stacks(tmp_path / "run")
    assert ([len(table) for table in found.tables], stdout) == ([0, 0, 0], "False []\n")


MARKS = """
    import threading, time
    import stashtrace
    def train():
        for _ in range(4):
            time.sleep(0.05)
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
            stashtrace.step()
    def train_twice():
        train()
        train()
    thread = threading.Thread(target=train_twice)
    thread.start()
    thread.join()
"""


def test_a_python_without_torch_that_marks_steps(tmp_path: Path) -> None:
    """From its first mark on."""
    _, stderr = run_script(sys.executable, MARKS, tmp_path / "run", **FAST, STASHTRACE_DRAINER="thread")
    found = Stacks(tmp_path / "run")
    assert stderr == ""
    in_train = [sample for sample in found.samples if sample.names[:2] == ["train", "train_twice"]]
    assert len(in_train) > 10
    assert len({sample.tid for sample in in_train}) == 1
    assert [span.names[:2] for span in found.spans if span.end_ns - span.begin_ns > 40_000_000] == [
        ["train", "train_twice"]
    ] * 7


HOLDER = """
    def spins():
        while not ends.is_set():
            sum(range(1000))
    def waits():
        stacks.watch()
        time.sleep(0.3)
        ends.set()
    ends = threading.Event()
    threads = [threading.Thread(target=function) for function in (spins, waits)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@PYTHONS
def test_who_holds_the_gil_is_sampled_too(tmp_path: Path, minor: int) -> None:
    run_script(interpreter(minor), BEGIN + HOLDER, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    spinning = [sample for sample in found.samples if "spins" in sample.names]
    assert len(spinning) > 10
    assert {sample.tid for sample in spinning}.isdisjoint(s.tid for s in found.samples if "waits" in s.names)
    assert all(StackFlag.HOLDS_GIL in sample.flags for sample in spinning)


def test_a_program_that_is_no_python_has_none(tmp_path: Path) -> None:
    done = record([compiled("wait_scenes.c")], tmp_path / "run", collectors=("waits", "posix_io", "python_stacks"))
    found = Stacks(done.directory)
    assert [len(table) for table in found.tables] == [0, 0, 0]
    assert found.losses == []


MANY = """
    ready = threading.Barrier(21)

    def watched():
        stacks.watch()
        ready.wait()
        sum(range(3_000_000))

    threads = [threading.Thread(target=watched) for _ in range(20)]
    for thread in threads:
        thread.start()
    ready.wait()
    for thread in threads:
        thread.join()
"""


def test_more_threads_than_are_sampled(tmp_path: Path) -> None:
    run_script(sys.executable, BEGIN + MANY, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert len({sample.tid for sample in found.samples if StackFlag.HOLDS_GIL not in sample.flags}) == 16
    assert found.losses == [("stacks_not_sampled", 0)]


def test_a_stack_whose_frames_were_lost_is_not_known(tmp_path: Path) -> None:
    """As where the ring of frames was full, or a disk."""
    run_script(sys.executable, BEGIN + LONG_CALLS + SCENES, tmp_path / "run", **FAST)
    (source,) = (tmp_path / "run").glob("*.stash")
    whole = Stacks(tmp_path / "run")
    for name, lost in (("all", None), ("first", 0)):
        (tmp_path / name).mkdir()
        write_without(source, tmp_path / name / source.name, "stack_frame", lost)
        found = Stacks(tmp_path / name)  # each key is that of a frame
        assert len(found.samples) == len(whole.samples)
        assert len(found.spans) <= len(whole.spans)
        if lost is None:
            assert not any(sample.stack for sample in found.samples)
            assert found.spans == []


STEPS = """
    def before():
        native.note_call(0, recorder.code("StackCause", "phase"))
    def within():
        native.note_call(0, recorder.code("StackCause", "phase"))
        for _ in until(0.3):
            pass
    stacks.watch()
    def run():
        for function in (before, within, before):
            native.set_recording(function is within)
            function()
    run()
    native.set_recording(False)
"""


@pytest.mark.parametrize("idle", ["0", "1"])
def test_a_window_is_sampled_from_its_begin(tmp_path: Path, idle: str) -> None:
    """Also in an idle run, whose threads look once a second until then."""
    run_script(sys.executable, BEGIN + STEPS, tmp_path / "run", **FAST, STASHTRACE_IDLE=idle)
    found = Stacks(tmp_path / "run")
    assert [span.names for span in found.spans] == [["within", "run", "<module>"]]
    first, last = found.samples[0].ts_ns, found.samples[-1].ts_ns
    assert all("within" in sample.names for sample in found.samples if len(sample.stack) > 2)
    assert last - first > 150_000_000
