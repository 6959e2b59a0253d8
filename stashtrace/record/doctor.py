"""What will be measured, inferred or invisible on this machine, and what that means for the answer.

``checks`` is called by ``stashtrace doctor``; the lines about GPUs are ``doctor_gpu``'s. It looks, it never changes
a setting, and it imports neither torch nor a GPU library.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.metadata
import os
import shutil
import stat
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

from stashtrace.errors import StashtraceError
from stashtrace.record.doctor_gpu import Check, gpu_checks
from stashtrace.record.environment import LIBRARY_PATH
from stashtrace.record.program import loader_takes_library, why_not_preloaded

_RECORDS_TRIED = 20_000
_PT_INTERP = 3


def checks(command: Sequence[str] = ()) -> list[Check]:
    """Examine this machine, and ``command`` if one is given."""
    found = [probe() for probe in _PROBES]
    # The GPU belongs behind what is measured of the job, before what is said of the machine.
    found[_GPU_PLACE:_GPU_PLACE] = gpu_checks()
    return [*found, *([_target(command)] if command else [])]


def _record_path() -> Check:
    try:
        from stashtrace import _native
    except ImportError as error:
        return Check("record path", "broken", str(error), "nothing can be recorded; `make native` or install again")
    steady = {"constant_tsc", "nonstop_tsc"} <= _cpu_flags()
    lane = next((r["lane_bytes"] for r in _native.schema()["records"] if r["name"] == "io_op"), 0)
    clock = "TSC invariant" if steady else "CLOCK_MONOTONIC (TSC not invariant)"
    added_ns = record_cost_ns()
    cost = f"{added_ns:.0f} ns added to a read here" if added_ns is not None else "cost could not be measured"
    state = "ok" if added_ns is not None else "broken"
    meaning = "what a killed process recorded is kept" if steady else "the same, at twice the cost"
    return Check("record path", state, f"{clock}, ring {lane >> 20} MiB per thread, {cost}", meaning)


def record_cost_ns() -> float | None:
    """What recording adds to one cached read: the same loop in a process with and one without it, median of three.

    None if the recorder cannot be loaded or recorded nothing.
    """
    from stashtrace.record.environment import traced_environment

    script = (
        "import os, time\nfd = os.open(os.sys.executable, os.O_RDONLY)\nread = os.pread\n"
        "for turn in range(2):\n    begin = time.perf_counter_ns()\n"
        f"    for _ in range({_RECORDS_TRIED}): read(fd, 1, 0)\n"
        "    spent = time.perf_counter_ns() - begin\nprint(spent)"
    )

    def spent_ns(environment: Mapping[str, str]) -> float:
        command = [sys.executable, "-S", "-I", "-c", script]
        return (
            int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            / _RECORDS_TRIED
        )

    bare = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    added = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            traced = traced_environment(bare, run_dir=folder, run_id="0")
            for _ in range(3):
                plain = spent_ns(bare)
                added.append(spent_ns(traced) - plain)
            if not any(name.endswith(".stash") for name in os.listdir(folder)):
                return None
    except (OSError, ValueError, subprocess.SubprocessError, StashtraceError):
        return None
    return max(statistics.median(added), 0.0)


def _posix_io() -> Check:
    accounting = _read("/proc/sys/kernel/task_delayacct")
    delay = "on" if accounting == "1" else "off"
    return Check(
        "POSIX I/O",
        "measured",
        f"by blocking: rusage of the thread (delay accounting {delay})",
        "storage is told from page cache by evidence, not by duration",
    )


def _dataloader() -> Check:
    version = _torch_version()
    if not version:
        return Check(
            "DataLoader", "invisible", "torch is not installed here", "no steps and no batches; I/O and waits alone"
        )
    return Check("DataLoader", "measured", f"torch {version}", "wait, fetch, collate and hand-off of each batch")


def _collectives() -> Check:
    if not _torch_version():
        return Check("collectives", "invisible", "torch is not installed here", "ranks are not compared")
    return Check(
        "collectives",
        "measured",
        "call, return and end; gloo: backend begin is estimated",
        "late ranks and the link are told apart",
    )


def _cold_cache() -> Check:
    if os.access("/proc/sys/vm/drop_caches", os.W_OK) and os.geteuid() == 0:
        return Check("cold cache", "ok", "drop_caches may be written", "cold and warm runs can be compared")
    return Check(
        "cold cache",
        "partly",
        "no permission for drop_caches; posix_fadvise works on files you own",
        "a cold run is as cold as its file system allows",
    )


def _clock() -> Check:
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    return Check("clock sync", "ok", f"one host, kernel clock {source}", "ranks of this host share one clock, exactly")


def _pressure() -> Check:
    missing = [n for n in ("cpu", "io", "memory") if not _readable(f"/proc/pressure/{n}")]
    if missing:
        return Check(
            "pressure",
            "invisible",
            "no /proc/pressure (kernel without PSI)",
            "crowding is seen by run-queue time alone",
        )
    return Check("pressure", "measured", "/proc/pressure: cpu, io, memory", "crowding of the host is named")


def _run_queue() -> Check:
    if not _readable("/proc/self/schedstat"):
        return Check("run queue", "invisible", "no /proc/self/schedstat", "CPU contention cannot be told from compute")
    return Check("run queue", "measured", "/proc/self/task/*/schedstat", "CPU contention is shown beside compute")


def _perf() -> Check:
    level = _read("/proc/sys/kernel/perf_event_paranoid")
    if level is None:
        return Check("perf events", "invisible", "no perf_event_paranoid", "not needed by any answer of this version")
    return Check("perf events", "ok", f"perf_event_paranoid {level}", "not needed by any answer of this version")


def _shared_memory() -> Check:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return Check(
            "/dev/shm", "partly", "missing", "torch's own worker queues may fail; rings lie in the run directory"
        )
    free = room.f_bavail * room.f_frsize
    state = "ok" if free >= 1 << 30 else "partly"
    meaning = "room for DataLoader batches" if state == "ok" else "DataLoader workers may die with a bus error"
    return Check("/dev/shm", state, f"{free / 2**30:.1f} GiB free", meaning)


def _preload() -> Check:
    from stashtrace.record.environment import traced_environment

    try:
        with tempfile.TemporaryDirectory() as folder:
            traced_environment({}, run_dir=folder, run_id="0")
    except StashtraceError as error:
        return Check("preload", "broken", str(error), error.hint or "nothing native can be recorded")
    return Check("preload", "ok", LIBRARY_PATH.name, "dynamically linked programs are traced without an edit")


def _target(command: Sequence[str]) -> Check:
    """Whether the loader will take our library into the program that ``command`` starts."""
    path = command[0] if "/" in command[0] else shutil.which(command[0])
    if path is None or not Path(path).is_file():
        return Check("this command", "broken", f"{command[0]} not found", "it cannot be run")
    mode = Path(path).stat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID) and Path(path).stat().st_uid != os.geteuid():
        return Check(
            "this command", "invisible", f"{path} is setuid", "the loader ignores LD_PRELOAD: nothing of it is recorded"
        )
    by_options = _hidden_by_options(Path(path).name, command[1:])
    if by_options is not None:
        return by_options
    if behind := _behind(Path(path).name, command[1:]):
        return _target(behind)
    if why := why_not_preloaded(path):
        return Check("this command", "invisible", f"{path} is {why}", "it is started without the library: not recorded")
    kind = program_kind(Path(path))
    if kind == "static":
        return Check(
            "this command", "invisible", f"{path} is statically linked", "it has no loader: nothing of it is recorded"
        )
    if kind == "script":
        words = _interpreter(Path(path))
        if words and Path(words[0]).is_file() and program_kind(Path(words[0])) != "script":
            told = _target([*words, str(path)])
            if told.state != "ok":
                return told
        return Check("this command", "ok", f"{path} is a script", "its interpreter and what it starts are traced")
    if kind == "foreign":
        return Check(
            "this command", "invisible", f"{path} is not an ELF program of this machine", "it is started, not recorded"
        )
    if not loader_takes_library(path):
        return Check(
            "this command", "invisible", f"its loader does not take {LIBRARY_PATH.name}", "it is started, not recorded"
        )
    return Check("this command", "ok", f"{path} is dynamically linked", "it and what it starts are traced")


def _interpreter(script: Path) -> list[str]:
    """The words of a script's first line behind ``#!``."""
    with open(script, "rb") as file:
        line = file.read(256).split(b"\n", 1)[0]
    return os.fsdecode(line[2:]).split()


def _behind(name: str, arguments: Sequence[str]) -> Sequence[str]:
    """The command that ``env``, ``nice`` or ``timeout`` starts; empty for other programs and for further options."""
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


def _hidden_by_options(name: str, arguments: Sequence[str]) -> Check | None:
    """What options of ``env`` and of Python take away from us, None if nothing."""
    options = list(takewhile(lambda word: word.startswith("-"), arguments))
    if name == "env" and any(word in ("-", "-i", "--ignore-environment") for word in options):
        return Check(
            "this command",
            "invisible",
            f"{name} {options[0]} clears the variables that tracing is made of",
            "what it starts is not recorded",
        )
    variables = takewhile(lambda word: "=" in word, arguments[len(options) :])
    if name == "env" and any(word.startswith("LD_PRELOAD=") for word in variables):
        return Check(
            "this command", "invisible", f"{name} LD_PRELOAD= takes the library out", "what it starts is not recorded"
        )
    if not name.startswith("python"):
        return None
    hiding = next((letter for letter in _letters(arguments) if letter in "IES"), None)
    if hiding is None:
        return None
    return Check(
        "this command",
        "partly",
        f"python -{hiding} loads no probes",
        "files and waits are recorded; steps, batches and collectives are not",
    )


def _letters(arguments: Sequence[str]) -> Iterator[str]:
    """Options of Python without a value, each a letter, up to what it runs."""
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
    """What a file is to the loader: dynamic, static, script or foreign."""
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


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu_flags() -> set[str]:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            return set(line.split())
    return set()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _readable(path: str) -> bool:
    return _read(path) is not None


_PROBES: tuple[Callable[[], Check], ...] = (
    _record_path,
    _preload,
    _posix_io,
    _dataloader,
    _collectives,
    _cold_cache,
    _clock,
    _pressure,
    _run_queue,
    _perf,
    _shared_memory,
)
_GPU_PLACE = _PROBES.index(_cold_cache)
