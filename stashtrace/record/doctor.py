"""The checks of ``stashtrace doctor``: what is measured, inferred or invisible on this machine, and what that means.

The checks of GPUs are in ``doctor_gpu``. Nothing here changes a setting or imports torch or a GPU library. What a job's
own environment has is asked of the Python that the command starts (``program``).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

from stashtrace.errors import StashtraceError, native_failure
from stashtrace.record.doctor_gpu import Answer, Check, gpu_checks
from stashtrace.record.environment import LIBRARY_PATH, traced_environment, untraced_environment
from stashtrace.record.host import far_file_system, near_folder
from stashtrace.record.options import DECLARATIONS
from stashtrace.record.program import JobPython, ask_python, is_python, loader_takes_library, preload_obstacle

_READS_COUNT = 20_000
_PT_INTERP = 3


#: Counters that the recorder stamps rows with, by its name for them; it has looked whether they can be trusted.
_COUNTERS = {"tsc": "TSC invariant", "cntvct": "CNTVCT_EL0"}


def checks(command: Sequence[str] = ()) -> list[Check]:
    """Check this machine, and ``command`` if one is given."""
    program = python_of(command) if command else sys.executable
    python = ask_python(program) if program is not None else None
    job = [Check(name, *check()) for name, check in _JOB_CHECKS.items()]
    job += [Check(name, *ask(python, program)) for name, ask in _PYTHON_CHECKS.items()]
    machine = [Check(name, *check()) for name, check in _MACHINE_CHECKS.items()]
    return [*job, *gpu_checks(), *machine, *([Check("this command", *_command(command))] if command else [])]


def _record_path() -> Answer:
    try:
        from stashtrace import _native
    except ImportError as error:
        failure = native_failure(error)
        return "broken", str(failure), f"nothing can be recorded or read; {failure.hint}"
    counter = _COUNTERS.get(_native.clock_name())
    ring_bytes = next((r["ring_bytes"] for r in _native.schema()["records"] if r["name"] == "io_op"), 0)
    clock = counter or "CLOCK_MONOTONIC (the processor's counter cannot be trusted)"
    added_ns = record_cost_ns()
    cost = f"{added_ns:.0f} ns added to a read here" if added_ns is not None else "cost could not be measured"
    state = "ok" if added_ns is not None else "broken"
    meaning = "what a killed process recorded is kept" if counter else "the same, at twice the cost"
    return state, f"{clock}, ring {ring_bytes >> 20} MiB per thread, {cost}", meaning


def record_cost_ns() -> float | None:
    """Return what recording adds to one cached read: median of three pairs of processes, with and without it.

    None if the recorder cannot be loaded or recorded nothing.
    """
    script = (
        "import os, time\nfd = os.open(os.sys.executable, os.O_RDONLY)\nread = os.pread\n"
        "for turn in range(2):\n    begin = time.perf_counter_ns()\n"
        f"    for _ in range({_READS_COUNT}): read(fd, 1, 0)\n"
        "    spent = time.perf_counter_ns() - begin\nprint(spent)"
    )

    def read_ns(environment: Mapping[str, str]) -> float:
        command = [sys.executable, "-S", "-I", "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout) / _READS_COUNT

    bare = untraced_environment(os.environ)
    bare.pop("LD_PRELOAD", None)
    added_ns = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            traced = traced_environment(bare, run_dir=folder, run_id="0")
            for _ in range(3):
                plain_ns = read_ns(bare)
                added_ns.append(read_ns(traced) - plain_ns)
            if not any(name.endswith(".stash") for name in os.listdir(folder)):
                return None
    except (OSError, ValueError, subprocess.SubprocessError, StashtraceError):
        return None
    return max(statistics.median(added_ns), 0.0)


def _preload() -> Answer:
    try:
        traced_environment({}, run_dir=".", run_id="0")
        ctypes.CDLL(str(LIBRARY_PATH))  # its constructor does nothing in a process that is not traced
    except StashtraceError as error:
        return "broken", str(error), error.hint or "nothing native can be recorded"
    except OSError as error:
        failure = native_failure(error)
        return "broken", str(failure), failure.hint or "nothing native can be recorded"
    return "ok", LIBRARY_PATH.name, "dynamically linked programs are traced without an edit"


def _posix_io() -> Answer:
    delay = "on" if _read("/proc/sys/kernel/task_delayacct") == "1" else "off"
    detail = f"by blocking: rusage of the thread (delay accounting {delay})"
    return "measured", detail, "storage and page cache are distinguished by evidence, not by duration"


def _run_directory() -> Answer:
    kind = far_file_system(Path.cwd())
    if not kind:
        return "ok", "a run directory made here is on a disk of this host", "recorded where it ends up"
    near = near_folder()
    detail = f"a run directory made here is on {kind}"
    if near is None:
        return (
            "partly",
            f"{detail}, and no local disk has room",
            "if it stands still, so does the job: give --scratch DIR",
        )
    return "ok", detail, f"recorded in {near} and copied at the end, so that no server keeps the job waiting"


def python_of(command: Sequence[str]) -> str | None:
    """Return the path of the Python that a command is, or that a script of its name is run by; None if unknown."""
    path = shutil.which(command[0]) if command else None
    if path is None:
        return None
    if is_python(path):
        return path
    if started := _command_behind(Path(path).name, command[1:]):
        return python_of(started)
    try:
        words = _interpreter(Path(path)) if program_kind(Path(path)) == "script" else []
    except OSError:  # it may be executed, but not read
        return None
    return python_of(words) if words and words[0] != path else None


_PROBES = "steps, batches and collectives are recorded"
_NO_PROBES = "files and waits are recorded; steps, batches and collectives are not"


def _python(python: JobPython | None, program: str | None) -> Answer:
    if program is None:
        return "inferred", "which one this command starts is not known", f"in any CPython from 3.10 on {_PROBES}"
    if python is None:
        return "partly", f"{program} does not answer", _NO_PROBES
    gil = " without a GIL" if python.without_gil else ""
    detail = f"{python.implementation} {'.'.join(map(str, python.version))}{gil}, {program}"
    obstacle = python.obstacle()
    if obstacle is not None:
        return "partly", f"{detail}: {obstacle}", _NO_PROBES
    own = Path(python.stashtrace).parent.resolve() if python.stashtrace is not None else None
    if own is not None and own != LIBRARY_PATH.parent:
        detail += f"; it has another stashtrace in {own}"
        return "ok", detail, f"{_PROBES}, by the probes of this stashtrace; annotations reach them"
    return "ok", detail, _PROBES


def _dataloader(python: JobPython | None, program: str | None) -> Answer:
    meaning = "wait, fetch, collate and hand-off of each batch"
    return _of_torch(python, program, meaning=meaning, without="no steps and no batches; I/O and waits alone")


def _stacks(python: JobPython | None, program: str | None) -> Answer:
    hidden = "which function waited or computed is not shown"
    answer = _of_torch(
        python, program, meaning="the function that waited or computed is named; py-spy is not needed", without=hidden
    )
    if answer[0] != "measured" or python is None:
        return answer
    if python.no_stacks:
        return "invisible", f"Python functions: {python.no_stacks}", f"{hidden}; py-spy can (`capture --stacks`)"
    rate = os.environ.get("STASHTRACE_STACK_HZ", DECLARATIONS["stack_hz"].default)
    if rate == "0":
        return "partly", "stacks of calls that take 1 ms or more (STASHTRACE_STACK_HZ=0)", answer[2]
    return "measured", f"stacks of calls that take 1 ms or more, and {rate} samples a second", answer[2]


def _collectives(python: JobPython | None, program: str | None) -> Answer:
    answer = _of_torch(
        python, program, meaning="late ranks and a slow link are distinguished", without="ranks are not compared"
    )
    return answer if answer[0] != "measured" else (answer[0], _ENDS_OF_COLLECTIVES, answer[2])


_ENDS_OF_COLLECTIVES = "call, return and end; gloo: backend begin is estimated"


def _of_torch(python: JobPython | None, program: str | None, *, meaning: str, without: str) -> Answer:
    """Say whether a torch can be watched: measured with ``meaning``, or what it is ``without``."""
    if program is None:
        return "inferred", "if the Python that this command starts has torch", meaning
    if python is None:
        return "invisible", "Python does not answer", without
    if python.torch is None:
        return "invisible", "torch is not installed here", without
    obstacle = python.obstacle()
    if obstacle is not None:
        return "invisible", f"torch {python.torch}, but {obstacle}", without
    return "measured", f"torch {python.torch}", meaning


def _cold_cache() -> Answer:
    if os.access("/proc/sys/vm/drop_caches", os.W_OK) and os.geteuid() == 0:
        return "ok", "drop_caches may be written", "cold and warm runs can be compared"
    detail = "no permission for drop_caches; posix_fadvise works on files you own"
    return "partly", detail, "a cold run is as cold as its file system allows"


#: The kernel says in whole seconds when it began.
_BENT_S = 2.0


def _clock() -> Answer:
    ahead_s = _ahead_s() if os.environ.get("LD_PRELOAD") else 0.0
    if abs(ahead_s) > _BENT_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        detail = f"a preloaded library puts the clock of programs {abs(ahead_s):,.0f} s {way} the kernel's"
        return "partly", detail, "recorded times are the kernel's, those that the job prints are not"
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    return "ok", f"one host, kernel clock {source}", "ranks of this host share one clock, exactly"


def _ahead_s() -> float:
    """Return how far the clock that libraries give to programs is ahead of the kernel's; 0 if that is not known."""
    words = (_read("/proc/uptime") or "").split()
    begun = [line.split()[1] for line in (_read("/proc/stat") or "").splitlines() if line.startswith("btime ")]
    return time.time() - float(begun[0]) - float(words[0]) if words and begun else 0.0


def _pressure() -> Answer:
    if any(_read(f"/proc/pressure/{name}") is None for name in ("cpu", "io", "memory")):
        return "invisible", "no /proc/pressure (kernel without PSI)", "crowding is seen by run-queue time alone"
    return "measured", "/proc/pressure: cpu, io, memory", "crowding of the host is named"


def _run_queue() -> Answer:
    if _read("/proc/self/schedstat") is None:
        return "invisible", "no /proc/self/schedstat", "CPU contention cannot be distinguished from compute"
    return "measured", "/proc/self/task/*/schedstat", "CPU contention is shown next to compute"


def _perf() -> Answer:
    level = _read("/proc/sys/kernel/perf_event_paranoid")
    if level is None:
        return "invisible", "no perf_event_paranoid", "not needed by any answer of this version"
    return "ok", f"perf_event_paranoid {level}", "not needed by any answer of this version"


def _shared_memory() -> Answer:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return "partly", "missing", "torch's worker queues may fail; rings lie in the run directory"
    free_bytes = room.f_bavail * room.f_frsize
    detail = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < 1 << 30:
        return "partly", detail, "DataLoader workers may die with a bus error"
    return "ok", detail, "room for DataLoader batches"


def _command(command: Sequence[str]) -> Answer:
    """Check whether the loader takes our library into the program that ``command`` starts."""
    path = command[0] if "/" in command[0] else shutil.which(command[0])
    if path is None or not Path(path).is_file():
        return "broken", f"{command[0]} not found", "it cannot be run"
    status = Path(path).stat()
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and status.st_uid != os.geteuid():
        return "invisible", f"{path} is setuid", "the loader ignores LD_PRELOAD: nothing of it is recorded"
    by_options = _hidden_by_options(Path(path).name, command[1:])
    if by_options is not None:
        return by_options
    if started := _command_behind(Path(path).name, command[1:]):
        return _command(started)
    obstacle = preload_obstacle(path)
    if obstacle is not None:
        return "invisible", f"{path} is {obstacle}", "it is started without the library: not recorded"
    kind = program_kind(Path(path))
    if kind == "static":
        return "invisible", f"{path} is statically linked", "it has no loader: nothing of it is recorded"
    if kind == "script":
        words = _interpreter(Path(path))
        if words and Path(words[0]).is_file() and program_kind(Path(words[0])) != "script":
            answer = _command([*words, str(path)])
            if answer[0] != "ok":
                return answer
        return "ok", f"{path} is a script", "its interpreter and what it starts are traced"
    if kind == "foreign":
        return "invisible", f"{path} is not an ELF program of this machine", "it is started, not recorded"
    if not loader_takes_library(path):
        return "invisible", f"its loader does not take {LIBRARY_PATH.name}", "it is started, not recorded"
    return "ok", f"{path} is dynamically linked", "it and what it starts are traced"


def _interpreter(script: Path) -> list[str]:
    """Return the words of a script's first line after ``#!``."""
    with open(script, "rb") as file:
        line = file.read(256).split(b"\n", 1)[0]
    return os.fsdecode(line[2:]).split()


def _command_behind(name: str, arguments: Sequence[str]) -> Sequence[str]:
    """Return the command that ``env``, ``nice`` or ``timeout`` starts; empty for other programs and other options."""
    if name not in ("env", "nice", "timeout"):
        return ()
    rest = list(arguments)
    if name == "nice" and rest[:1] == ["-n"]:
        rest = rest[2:]
    if rest and rest[0].startswith("-"):
        return ()
    if name == "env":
        rest = list(dropwhile(lambda word: "=" in word, rest))
    return rest[1:] if name == "timeout" else rest


def _hidden_by_options(name: str, arguments: Sequence[str]) -> Answer | None:
    """Say what options of ``env`` or of Python keep from being recorded; None if they keep nothing."""
    options = list(takewhile(lambda word: word.startswith("-"), arguments))
    if name == "env" and any(word in ("-", "-i", "--ignore-environment") for word in options):
        detail = f"{name} {options[0]} clears the variables that tracing is made of"
        return "invisible", detail, "what it starts is not recorded"
    variables = takewhile(lambda word: "=" in word, arguments[len(options) :])
    if name == "env" and "LD_PRELOAD=" in variables:
        return "invisible", f"{name} LD_PRELOAD= takes the library out", "what it starts is not recorded"
    if not name.startswith("python"):
        return None
    hiding = next((letter for letter in _python_flags(arguments) if letter in "IES"), None)
    if hiding is None:
        return None
    meaning = "files and waits are recorded; steps, batches and collectives are not"
    return "partly", f"python -{hiding} loads no probes", meaning


def _python_flags(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the one-letter options of Python that take no value, up to the program that it runs."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word == "-":
            return
        for place, letter in enumerate(word[1:], 2) if not word.startswith("--") else ():
            if letter in "cm":
                return
            if letter in "WX":  # the rest of the word is its value, or the next word
                if place == len(word):
                    next(words, "")
                break
            yield letter


def program_kind(path: Path) -> str:
    """Return what a file is to the loader: dynamic, static, script or foreign."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:2] == b"#!":
            return "script"
        if head[:4] != b"\x7fELF" or len(head) < 64 or head[4] != 2:
            return "foreign"
        table_at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(table_at)
        table = file.read(size * count)
    kinds = [struct.unpack_from("<I", table, i * size)[0] for i in range(len(table) // size)]
    return "dynamic" if _PT_INTERP in kinds else "static"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


#: What is seen of a job on any machine; the checks of GPUs follow.
_JOB_CHECKS: dict[str, Callable[[], Answer]] = {
    "record path": _record_path,
    "preload": _preload,
    "POSIX I/O": _posix_io,
    "run directory": _run_directory,
}
_PYTHON_CHECKS: dict[str, Callable[[JobPython | None, str | None], Answer]] = {
    "Python": _python,
    "DataLoader": _dataloader,
    "collectives": _collectives,
    "Python stacks": _stacks,
}
_MACHINE_CHECKS: dict[str, Callable[[], Answer]] = {
    "cold cache": _cold_cache,
    "clock sync": _clock,
    "pressure": _pressure,
    "run queue": _run_queue,
    "perf events": _perf,
    "/dev/shm": _shared_memory,
}
