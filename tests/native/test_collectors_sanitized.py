"""The collectors of devices on the doubles, with the recorder built for a sanitizer; a finding fails the test it
belongs to.

The gate builds the small programs of what threads share, under TSan. `make thorough` builds the recorder, and plays a
short selection: what has threads, forks, ends early or hands memory about. All tests of the collectors, and the other
sanitizer: STASHTRACE_SANITIZE=address or thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from native.native_build import OPTIONS, build, run_command, runtimes

from stashtrace.record.environment import preload_path

ROOT = Path(__file__).resolve().parents[2]
#: The one of which the short selection is worth its build in every run.
DEFAULT = "thread"
KIND = os.environ.get("STASHTRACE_SANITIZE") or DEFAULT
COLLECTORS = ("cuda", "nccl", "nvml", "cupti")
#: More files of a collector's tests, under ASan: the doubles of a whole job are not built for TSan, which would not see
#: that they count their references with atomics.
MORE = {"cuda": ("device_streams",), "nccl": ("nccl_doubles",)}
#: Of each collector, by words in the names of its tests.
SHORT = {
    "cuda": "many_threads or fork or in_flight or a_wait_knows_where or capture or probes_put",
    "nccl": "test_eight_threads or full_pool or fork or chained_plugin_gets or plugin_orders or calls_in_order",
    "nvml": "falls_off",
    "cupti": "forked or records_the_window",
}
#: These look at what no sanitizer can be in front of: a process of bare Python, the look-up hook, the cost of a call.
APART = "not attach and not both_libraries and not lookup and not cost"
#: Threads of a process that is not traced, which make the first calls of hooked functions all at once.
FIRST_CALLS = """
#include <atomic>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>
std::atomic<int> arrived{0};
int main() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      arrived.fetch_add(1, std::memory_order_relaxed);
      while (arrived.load(std::memory_order_relaxed) < 4) sched_yield();
      struct stat facts;
      char byte;
      poll(nullptr, 0, 0);
      usleep(1);
      stat("/", &facts);
      const int fd = open("/dev/zero", O_RDONLY);
      if (fd < 0 || pread(fd, &byte, 1, 0) != 1 || fcntl(fd, F_GETFD) < 0 || syscall(SYS_getpid) <= 0) _exit(1);
      close(fd);
    });
  for (std::thread& thread : threads) thread.join();
}
"""
#: Under TSan not: torch, of which it sees nothing but the locks, and what counts on the speed of a job or of its end.
APART_OF_THREADS = " and not torch and not hangs and not takes_over and not no_buffer and not forked_child_neither"


#: Programs of tests with threads, and what they need of the recorder: a second each where the whole takes a minute.
SHARED = {
    "ring": (),
    "string_table": ("core/string_table.cpp",),
    "slab": (),
    "event_map": (),
    "stacks": ("stacks/memory.cpp", "stacks/layout.cpp", "core/string_table.cpp"),
}


def play(kind: str, folder: Path, files: Sequence[str], words: str) -> None:
    """Run tests of collectors, files by their names, on the build of this kind."""
    if runtimes(kind) is None:
        pytest.skip(f"the compiler has no library for -fsanitize={kind}")
    try:
        build(folder, "stashtrace", kind)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    chosen = f"({words}) and {APART}" + (APART_OF_THREADS if kind == "thread" else "")
    command, environment = run_command(
        folder, kind, [*(f"tests/collectors/test_{file}.py" for file in files), "-k", chosen]
    )
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def kept(request: pytest.FixtureRequest, kind: str) -> Path:
    return Path(request.config.cache.mkdir("collectors-" + kind))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "thread") for name in SHARED),
        pytest.param("stacks", "address", marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_what_threads_share(tmp_path: Path, name: str, kind: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None or runtimes(kind) is None:
        pytest.skip(f"the compiler has no library for -fsanitize={kind}")
    sources = [ROOT / f"tests/native/test_{name}.cpp", *(ROOT / "csrc" / source for source in SHARED[name])]
    folders = [f"-I{ROOT / folder}" for folder in ("csrc", "tests/native")]
    options = ["-std=c++20", "-O1", "-g1", f"-fsanitize={kind}", "-pthread", *folders, "-o", tmp_path / name]
    subprocess.run([str(word) for word in (compiler, *options, *sources)], check=True)
    done = subprocess.run([tmp_path / name], env=os.environ | OPTIONS, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.mark.thorough
def test_short_selection(request: pytest.FixtureRequest) -> None:
    words = " or ".join(f"(test_{collector} and ({SHORT[collector]}))" for collector in COLLECTORS)
    play(KIND, kept(request, KIND), COLLECTORS, words)


@pytest.mark.thorough
def test_first_calls_of_many_threads(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    libraries, compiler = runtimes("thread"), shutil.which("g++")
    if libraries is None or compiler is None:
        pytest.skip("no compiler with a library for -fsanitize=thread")
    try:
        folder = build(kept(request, "thread"), "stashtrace", "thread")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    (tmp_path / "first.cpp").write_text(FIRST_CALLS, encoding="utf-8")
    program = tmp_path / "first"
    command = [compiler, "-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-o", program, tmp_path / "first.cpp"]
    subprocess.run([str(word) for word in command], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")}
    environment["LD_PRELOAD"] = ":".join([*libraries, preload_path(folder / "stashtrace/libstashtrace.so")])
    # The symbolizer reads its pipe through our hooks, so a report about these would wait for itself.
    environment["TSAN_OPTIONS"] = OPTIONS["TSAN_OPTIONS"] + ":symbolize=0:halt_on_error=1"
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("STASHTRACE_SANITIZE"), reason="minutes: set STASHTRACE_SANITIZE to choose it")
@pytest.mark.parametrize("collector", COLLECTORS)
def test_whole_collector(request: pytest.FixtureRequest, collector: str) -> None:
    more = MORE.get(collector, ()) if KIND == "address" else ()
    play(KIND, kept(request, KIND), (collector, *more), "test")
