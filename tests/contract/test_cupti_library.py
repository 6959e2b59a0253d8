"""The real libcupti on the doubled driver, behind our hooks: a profiler hears the same with the recorder as without.

On a driver that is not NVIDIA's it answers 999 to everything, its version included, so what is compared is that we
neither mend nor break that: nothing is traced here. The one of CUDA 13.2 calls itself without
end there, untraced as well.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from collectors.recorded import plain_environment
from contract.real_interfaces import compiler, cupti_libraries
from device import fake_environment

from stashtrace.record.environment import traced_environment
from stashtrace.record.options import RecordOptions

PROGRAM = r"""
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <initializer_list>
extern "C" {
using Requested = void (*)(std::uint8_t**, std::size_t*, std::size_t*);
using Completed = void (*)(void*, std::uint32_t, std::uint8_t*, std::size_t, std::size_t);
int cuptiGetVersion(std::uint32_t*); int cuptiSubscribe(void**, void (*)(void*, int, unsigned, const void*), void*);
int cuptiUnsubscribe(void*); int cuptiActivityRegisterCallbacks(Requested, Completed);
int cuptiActivityEnable(int);
int cuptiActivityFlushAll(std::uint32_t); int cuptiGetTimestamp(std::uint64_t*);
int cuptiGetResultString(int, const char**);
}
void requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *bytes = 1 << 16; *most = 0; *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *bytes));
}
void completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t) { std::free(buffer); }
void on_event(void*, int, unsigned, const void*) {}
int main() {
  std::uint32_t version = 0; std::uint64_t now = 0; void *one = nullptr, *two = nullptr; const char* text = nullptr;
  std::printf("version %d ", cuptiGetVersion(&version)); std::printf("%u\n", version);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  std::printf("driver %d\n", driver == nullptr ? -1 : reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"))(0));
  std::printf("register %d\n", cuptiActivityRegisterCallbacks(&requested, &completed));
  for (int kind : {1, 2, 10}) std::printf("enable %d %d\n", kind, cuptiActivityEnable(kind));
  std::printf("subscribe %d\n", cuptiSubscribe(&one, &on_event, nullptr));
  std::printf("again %d\n", cuptiSubscribe(&two, &on_event, nullptr));
  std::printf("unsubscribe %d\n", cuptiUnsubscribe(one));
  std::printf("flush %d\n", cuptiActivityFlushAll(0));
  std::printf("text %d\n", cuptiGetResultString(39, &text));
  std::printf("time %d\n", cuptiGetTimestamp(&now));
}
"""
pytestmark = pytest.mark.wheels


@pytest.mark.parametrize("kernels", [False, True], ids=["brackets", "kernels"])
@pytest.mark.parametrize("hook", [False, True], ids=["plain", "lookup_hook"])
def test_a_profiler_hears_the_same_with_the_recorder(kernels: bool, hook: bool, tmp_path: Path) -> None:
    libraries = cupti_libraries()
    if not libraries:
        pytest.skip("no libcupti: the wheel nvidia-cuda-cupti, or STASHTRACE_CUPTI_LIBRARY")
    compared = 0
    source = tmp_path / "program.cpp"
    source.write_text(PROGRAM, encoding="utf-8")
    for number, library in enumerate(libraries):
        program = tmp_path / f"program{number}"
        command = [compiler(), "-std=c++20", "-w", "-o", program, source, library, f"-Wl,-rpath,{library.parent}"]
        subprocess.run(command, check=True)
        env = fake_environment(tmp_path / f"doubles{number}", libraries=["cuda"])
        bare = subprocess.run([program], env=plain_environment(env), capture_output=True, text=True, timeout=180)
        if bare.returncode == -signal.SIGSEGV:
            continue
        compared += 1
        assert bare.returncode == 0, bare.stderr
        assert len(bare.stdout.splitlines()) == 12
        run_dir = tmp_path / f"run{number}"
        run_dir.mkdir()
        traced = traced_environment(
            plain_environment(env), RecordOptions(kernels=kernels, lookup_hook=hook), run_dir=run_dir, run_id="1"
        )
        seen = subprocess.run([program], env=traced, capture_output=True, text=True, timeout=180)
        assert (seen.stdout, seen.returncode) == (bare.stdout, 0)
        if kernels:  # we leave CUPTI to the profiler, and say so
            assert "CUPTI is left to: a profiler that called cuptiActivityRegisterCallbacks" in seen.stderr
        else:
            assert seen.stderr == bare.stderr
    if not compared:
        pytest.skip(f"{libraries[0]} crashes by itself on a driver that it cannot attach to")
