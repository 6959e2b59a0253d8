"""Stacks of Python that changes while it is read: no crash, no name that does not exist, no trace in the job."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from other_pythons import RECORDS, VERSIONS, interpreter, run_script
from read_stacks import BEGIN, Sample, Span, Stacks

from stashtrace.analysis.findings.rules.trust import trust
from stashtrace.schema.kinds import StackCause, StackFlag

#: Pythons that are left to `make thorough`; stacks of the process and samples are compared in all of them each time.
SELDOM = {10, 11, 12}
PYTHONS = pytest.mark.parametrize(
    "minor",
    [
        pytest.param(minor, marks=pytest.mark.thorough if minor in SELDOM else ())
        for minor in VERSIONS
        if minor >= RECORDS
    ],
)
FAST = {"STASHTRACE_STACK_HZ": "1000", "STASHTRACE_COLLECTORS": "python_stacks,posix_io"}


def mostly_whole(samples: list[Sample]) -> bool:
    """Whether at least half were read whole: where other work interrupts the reader, a quarter may be torn."""
    torn = sum(not sample.stack or StackFlag.INNER_TORN in sample.flags for sample in samples)
    return 2 * torn <= len(samples)


# Code objects that come and go ------------------------------------------------------------------

#: Name, file and first line of each function say the same number; a few files have the same name in each.
REUSED_CODE = """
    TEXT = "def f{0}(n):\\n  for i in range(200):\\n    i = [i] * 2\\n  return f{0}(n - 1) if n else 0\\nf{0}(2)"
    TEXT = "\\n" * 5 + TEXT
    SAME = "def same(n):\\n{1}  for i in range(200): i = [i]\\n  return same(n - 1) if n else 0\\nsame(2)"
    stacks.watch()
    number = 0
    for _ in until(1.5):
        number += 1
        exec(compile(TEXT.format(number % 977), f"file{number % 977}", "exec"), {})
        exec(compile(SAME.format(number, "\\n" * (number % 50)), f"same{number % 50}", "exec"), {})
"""


@PYTHONS
def test_no_name_file_or_line_is_of_another_code_object(tmp_path: Path, minor: int) -> None:
    run_script(interpreter(minor), BEGIN + REUSED_CODE, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert mostly_whole(found.samples)
    files = {file for sample in found.samples for _, file, _ in sample.stack}
    assert len(files) > 5
    for sample in found.samples:
        for name, file, line in sample.stack:
            if name.startswith("f"):
                assert f"file{name[1:]}" == file
                assert 6 <= line <= 9 or line == -1
            elif name == "same":
                shift = int(file.removeprefix("same"))
                assert line in (-1, 1, 2 + shift, 3 + shift)
            else:
                assert name in ("<module>", "until")
        assert len({file for _, file, _ in sample.stack}) <= 2, sample.stack


# Threads that end, forks, programs ---------------------------------------------------------------

ENDING_THREADS = """
    def thread_body(n):
        return thread_body(n - 1) if n else sum(range(300))
    def thread_main():
        native.watch_stack(True)
        thread_body(20)
    count = 0
    for _ in until(2):
        threads = [threading.Thread(target=thread_main) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count += 8
    print(count)
"""


@PYTHONS
def test_threads_end_while_they_are_read(tmp_path: Path, minor: int) -> None:
    stdout, stderr = run_script(interpreter(minor), BEGIN + ENDING_THREADS, tmp_path / "run", **FAST)
    assert int(stdout) > 100
    assert stderr == ""
    found = Stacks(tmp_path / "run")
    known = {"thread_body", "thread_main", "sum"}
    of_threading = {n for s in found.samples for n, file, _ in s.stack if not file.endswith("threading.py")}
    assert of_threading <= known
    assert ("stacks_not_sampled", 0) not in found.losses


FORKS = """
    def of_parent():
        for _ in until(0.15):
            sum(range(300))
    def of_child():
        for _ in until(0.3):
            sum(range(300))
    stacks.watch()
    for _ in range(4):
        of_parent()
        child = os.fork()
        if not child:
            mapped = "memfd:stashtrace" in open("/proc/self/maps").read()
            process.begin(ends_itself=True)
            stacks.watch()
            of_child()
            process.end()
            os._exit(mapped)
        of_parent()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "memfd:stashtrace" in open("/proc/self/maps").read()
"""


@PYTHONS
def test_a_fork_samples_again_and_leaves_the_parent_alone(tmp_path: Path, minor: int) -> None:
    """Forked while the thread samples: the child has neither its memory nor its rows."""
    run_script(interpreter(minor), BEGIN + FORKS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    names: dict[int, set[str]] = {}
    for sample in found.samples:
        names.setdefault(sample.pid, set()).update(sample.names)
    assert sorted(n & {"of_parent", "of_child"} == {"of_child"} for n in names.values()) == [False, *[True] * 4]
    assert mostly_whole(found.samples)


PROGRAMS = """
    import subprocess
    stacks.watch()
    def starts():
        for _ in until(0.7):
            subprocess.run(["/bin/true"], check=True)
    starts()
    sys.stdout.flush()
    os._exit(7)
"""


def test_programs_started_by_vfork_and_an_end_without_warning(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"^\(7, ''\)"):
        run_script(sys.executable, BEGIN + PROGRAMS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert sum("starts" in sample.names for sample in found.samples) > 5


SUBINTERPRETERS = """
    try:
        import _interpreters as interpreters
        run = interpreters.exec
    except ImportError:
        import _xxsubinterpreters as interpreters
        run = interpreters.run_string
    stacks.watch()
    def within():
        for _ in until(0.7):
            other = interpreters.create()
            run(other, "def inner():\\n  return sum(range(100_000))\\ninner()")
            interpreters.destroy(other)
    within()
"""


@PYTHONS
def test_interpreters_within_an_interpreter(tmp_path: Path, minor: int) -> None:
    """Those with a separate GIL have separate frames; without, up to 3.11, they are below the caller's."""
    run_script(interpreter(minor), BEGIN + SUBINTERPRETERS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert sum("within" in sample.names for sample in found.samples) > 5
    # The program's module is over when the interpreter waits for its threads.
    assert {sample.names[-1] for sample in found.samples if sample.stack} <= {"<module>", "_shutdown"}


GREENLETS = """
    import greenlet
    def outer():
        for _ in until(0.7):
            other.switch()
    def inner():
        while True:
            deeper(10)
    def deeper(n):
        return deeper(n - 1) if n else main.switch()
    main, other = greenlet.getcurrent(), greenlet.greenlet(inner)
    stacks.watch()
    outer()
"""


def test_greenlets(tmp_path: Path) -> None:
    greenlet = pytest.importorskip("greenlet")
    packages = Path(greenlet.__file__).parents[1]
    run_script(sys.executable, BEGIN + GREENLETS, tmp_path / "run", packages, **FAST)
    found = Stacks(tmp_path / "run")
    assert {n for s in found.samples for n in s.names} <= {"outer", "inner", "deeper", "until", "<module>"}
    assert mostly_whole(found.samples)


# Tracers, handlers, ends -------------------------------------------------------------------------

TRACED = """
    calls = 0
    def tracer(frame, event, argument):
        global calls
        calls += 1
        return tracer
    def traced():
        def generator(n):
            yield from range(n)
        for _ in until(0.7):
            sum(generator(30))
    stacks.watch()
    sys.{0}(tracer)
    traced()
    sys.{0}(None)
    assert calls > 100
"""


@PYTHONS
@pytest.mark.parametrize("watch", ["settrace", "setprofile"])
def test_next_to_a_tracer(tmp_path: Path, minor: int, watch: str) -> None:
    run_script(interpreter(minor), BEGIN + TRACED.format(watch), tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert sum("traced" in sample.names for sample in found.samples) > 5
    assert mostly_whole(found.samples)


#: In C, on a small stack, wherever the interpreter was; that of faulthandler reads frames by itself, and faults.
HANDLER = r"""
    #include <signal.h>
    #include <unistd.h>
    static int fd;
    static char stack[8192];
    static void write_all(int number) {
      char text[200] = "";
      write(fd, text, sizeof text);
    }
    void begin(int to) {
      fd = to;
      stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
      sigaltstack(&other, 0);
      struct sigaction action = {.sa_handler = write_all, .sa_flags = SA_ONSTACK | SA_RESTART};
      sigaction(SIGALRM, &action, 0);
    }
"""
HANDLERS = """
    import ctypes, fcntl, signal
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        while os.read(reader, 200):
            time.sleep(0.004)
        os._exit(0)
    os.close(reader)
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
    ctypes.CDLL({0!r}).begin(writer)
    stacks.watch()
    def handled():
        def generator(n):
            for i in range(n):
                yield [i] * 3
        for _ in until(1.5):
            sum(len(item) for item in generator(40))
            native.note_call(0, recorder.code("StackCause", "garbage"))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    handled()
    signal.setitimer(signal.ITIMER_REAL, 0)
"""


@PYTHONS
def test_handlers_that_make_long_calls(tmp_path: Path, minor: int) -> None:
    """Also in the middle of writing the stack of another long call."""
    library = tmp_path / "handler.so"
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=HANDLER, text=True, check=True)
    run_script(interpreter(minor), BEGIN + HANDLERS.format(str(library)), tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    written: list[Span] = [span for span in found.spans if span.cause == StackCause.IO and "handled" in span.names]
    assert written != []
    ours = {name for span in found.spans for name, file, _ in span.stack if file == "<string>"}
    names = {part for name in ours for part in name.split(".")}
    assert names <= {"handled", "<module>", "<locals>", "until", "generator", "<genexpr>"}


SMALL_STACKS = """
    reader, writer = os.pipe()
    threading.stack_size(32 * 1024 if sys.version_info < (3, 12) else 128 * 1024)
    together = threading.Barrier(121)
    def small():
        os.read(reader, 1)
        together.wait()
        together.wait()
    threads = [threading.Thread(target=small) for _ in range(120)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    os.write(writer, b"x" * 120)
    together.wait()
    print(json.dumps([os.stat(path).st_blocks * 512 for path in folder.glob("*.ring")]))
    together.wait()
    for thread in threads:
        thread.join()
"""


@PYTHONS
def test_many_threads_of_small_stacks(tmp_path: Path, minor: int) -> None:
    code = BEGIN + "    import json, pathlib\n    folder = pathlib.Path(os.environ['STASHTRACE_DIR'])\n" + SMALL_STACKS
    stdout, _ = run_script(interpreter(minor), code, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert len([span for span in found.spans if span.names[0] == "small"]) == 120
    assert found.losses == []
    assert max(json.loads(stdout)) < 32 << 20


DAEMONS = """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        try:
            for _ in range(400):
                time.sleep(0.001)
                os.write(writer, b"x" * 8)
        except BrokenPipeError:
            pass
        os._exit(0)
    os.close(writer)
    def daemon(n):
        if n:
            return daemon(n - 1)
        while True:
            os.read(reader, 1)
    for _ in range(40):
        threading.Thread(target=daemon, args=(30,), daemon=True).start()
    stacks.watch()
    time.sleep(0.05)
"""


@PYTHONS
def test_the_interpreter_ends_while_threads_are_in_long_calls(tmp_path: Path, minor: int) -> None:
    for turn in range(3):
        run_script(interpreter(minor), BEGIN + DAEMONS, tmp_path / f"run{turn}", **FAST)
        named = {span.stack[0][:2] for span in Stacks(tmp_path / f"run{turn}").spans}
        assert {name for name, file in named if file == "<string>"} <= {"daemon", "<module>"}


# Tables that are full ----------------------------------------------------------------------------

MANY_STACKS = """
    cause = recorder.code("StackCause", "garbage")
    def tree(n):
        if n:
            tree(n - 1)
            tree(n - 1)
        else:
            native.note_call(0, cause)
    tree(15)
"""


def test_more_stacks_than_have_numbers(tmp_path: Path) -> None:
    """65,536 frames below their callers."""
    run_script(sys.executable, BEGIN + MANY_STACKS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    lost = sum(count for name, count in found.losses if name == "stacks_not_numbered")
    assert 0 < lost < 1 << 15
    assert len({tuple(span.stack) for span in found.spans}) > 10_000
    assert all(len(span.stack) == 17 for span in found.spans)


MANY_TEXTS = """
    for number in range(70_000):
        native.intern(f"text {number}")
    def known():
        native.note_call(0, recorder.code("StackCause", "garbage"))
    known()
"""


def test_no_lasting_text_is_left(tmp_path: Path) -> None:
    run_script(sys.executable, BEGIN + MANY_TEXTS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert [loss for loss in found.losses if loss[0] == "stacks_not_numbered"] != [] or len(found.spans) == 1


# What the system refuses -------------------------------------------------------------------------

_CALLS = {
    "x86_64": {"memfd_create": 319, "process_vm_readv": 310, "close_range": 436},
    "aarch64": {"memfd_create": 279, "process_vm_readv": 270, "close_range": 436},
}.get(platform.machine(), {})


def refusing(*calls: str) -> Callable[[], None]:
    """Have these system calls refused by EPERM from now on."""
    load, jump, done = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_RET
    allow, refuse = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
    rules = [(load, 0, 0, 0)]
    rules += [(jump, len(calls) - place, 0, _CALLS[name]) for place, name in enumerate(calls)]
    rules += [(done, 0, 0, allow), (done, 0, 0, refuse)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)

    def install() -> None:
        assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
        assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        assert text

    return install


REFUSED = """
    import json
    def descriptors(kept):
        return [os.readlink(f"/proc/self/{kept}/{fd}") for fd in os.listdir(f"/proc/self/{kept}")
                if os.path.lexists(f"/proc/self/{kept}/{fd}")]
    stacks.watch()
    def busy():
        for _ in until(0.5):
            sum(range(300))
    busy()
    of_threads = [name for tid in os.listdir("/proc/self/task") for name in descriptors(f"task/{tid}/fd")]
    own = descriptors("fd")
    print(json.dumps([sorted({name.split(":")[-1].split("/")[-1] for name in names
                              if "memfd" in name or name.endswith("/mem")}) for names in (of_threads, own)]))
"""
COPY, MEMORY = "stashtrace (deleted)", "mem"
BETWEEN = "Python functions between long calls"


@pytest.mark.skipif(not _CALLS, reason="the numbers of this machine's system calls are not known here")
@pytest.mark.parametrize(
    ("calls", "kept", "samples"),
    [
        ((), [COPY], True),
        (("memfd_create",), [], True),
        (("memfd_create", "process_vm_readv"), [MEMORY], True),
        (("close_range",), [], True),
        (("close_range", "process_vm_readv"), [], False),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, tuple) else None,
)
def test_what_the_system_refuses(tmp_path: Path, calls: tuple[str, ...], kept: list[str], samples: bool) -> None:
    """``close_range``: as before Linux 5.9, where our thread shares the program's descriptors and may keep none."""
    before = refusing(*calls) if calls else None
    stdout, stderr = run_script(sys.executable, BEGIN + REFUSED, tmp_path / "run", before=before, **FAST)
    assert (json.loads(stdout), stderr) == ([kept, []], "")
    found = Stacks(tmp_path / "run")
    assert (sum("busy" in sample.names for sample in found.samples) > 5) is samples
    assert mostly_whole(found.samples)
    assert found.losses == ([] if samples else [("stacks_not_readable", 0)])
    reported = [part for part in trust(found.trace, {}).invisible if "Python" in part]
    assert reported == ([] if samples else [f"{BETWEEN} (the system lets no process read its own memory)"])


SIZE_LIMIT = """
    import resource
    stacks.watch()
    def before():
        for _ in until(0.2):
            sum(range(300))
    def within():
        for _ in until(0.4):
            sum(range(300))
    before()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, most))
    within()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
"""


@pytest.mark.parametrize("limit", [0, 8192])
def test_a_size_limit_of_files(tmp_path: Path, limit: int) -> None:
    """It holds for the copy that is cheapest to read, too."""
    run_script(sys.executable, BEGIN + SIZE_LIMIT.format(limit), tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    within = [sample for sample in found.samples if "within" in sample.names]
    assert len(within) > 10
    assert mostly_whole(found.samples)


NUMBERS = """
    stacks.watch()
    def opens():
        numbers = set()
        for _ in until(0.5):
            fd = os.open("/dev/null", os.O_RDONLY)
            numbers.add(fd)
            os.close(fd)
        return numbers
    print(sorted(opens()))
"""


def test_descriptors_have_the_numbers_that_they_have_without_us(tmp_path: Path) -> None:
    stdout, _ = run_script(sys.executable, BEGIN + NUMBERS, tmp_path / "run", **FAST)
    assert stdout == "[3]\n"
    assert len(Stacks(tmp_path / "run").samples) > 5


def test_other_texts_than_those_of_the_file_system(tmp_path: Path) -> None:
    """A path that is no ASCII is read as UTF-8, whatever the locale says."""
    script = "from stashtrace.probes import process, stacks\nprocess.begin()\nstacks.begin()\nprint(stacks._on)"
    code = f"exec(compile({script!a}, '/x/caf\\xe9\\u4e2d.py', 'exec'))"
    locales = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    for name in ("C", *[found for found in locales if "8859" in found][:1]):
        folder = tmp_path / f"run {name}"
        stdout, _ = run_script(sys.executable, code, folder, LC_ALL=name, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert stdout == "True\n", os.listdir(folder)
