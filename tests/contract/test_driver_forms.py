"""The forms of the driver's functions that the look-up hook stands in front of, and those of the double, are NVIDIA's.

cudaTypedefs.h has one type per form, ``PFN_cuMemAlloc_v3020``, with the CUDA version in which it came; cuda.h
says which symbol of the library a name means today.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from collectors.test_look_ups import Form, forms, known_until
from contract.real_interfaces import compiler, driver_headers
from traced import ROOT

SIGNATURES = """
#include <cuda.h>
#include <cudaTypedefs.h>
#include <type_traits>
#include "abi/cuda_abi.h"
namespace own { using namespace stashtrace::cuda; }
// Enumerations are int with us and handles are void*: what a register holds is compared.
template <class T> struct Plain { using type = T; };
template <class T> struct Plain<T*> { using type = void*; };
template <class T> requires std::is_enum_v<T> struct Plain<T> { using type = int; };
template <class F> struct Call;
template <class R, class... A> struct Call<R (*)(A...)> {
  using type = typename Plain<R>::type (*)(typename Plain<A>::type...);
};
#define SAME(theirs, ...) static_assert(std::is_same_v<Call<theirs>::type, Call<__VA_ARGS__>::type>, #theirs)
"""
SYMBOLS = """
#include <cuda.h>
#define TEXT(x) #x
#define SYMBOL(x) TEXT(x)
"""


def need_headers() -> list[Path]:
    found = driver_headers()
    if not found:
        pytest.skip("no cuda.h with cudaTypedefs.h: the wheels nvidia-cuda-runtime and nvidia-cuda-runtime-cu12")
    return found


def version_of(folder: Path) -> int:
    found = re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1])


def types_of(folder: Path, name: str) -> tuple[set[int], set[int]]:
    """CUDA versions in which a function got a form; and those of its forms for per-thread default streams."""
    text = (folder / "cudaTypedefs.h").read_text(encoding="utf-8", errors="replace")
    found = re.findall(rf"\*PFN_{name}_v(\d+)(_pt[sd][sz])?\)", text)
    return {int(v) for v, own in found if not own}, {int(v) for v, own in found if own}


def compile_with(folder: Path, source: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "check.cpp"
    file.write_text(source, encoding="utf-8")
    own = ("-I", str(ROOT / "csrc"), "-isystem", str(folder))
    command = [compiler(), "-std=c++20", "-w", "-fsyntax-only", *own, *options, str(file)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_range_begins_and_ends_where_a_form_does() -> None:
    wrong = []
    for folder in need_headers():
        until = min(known_until(), version_of(folder) + 1)
        for form in forms():
            plain, per_thread = types_of(folder, form.name)
            if form.since >= until:
                continue
            inside = {version for version in plain if form.since <= version < min(form.until, until)}
            if inside != {form.since}:
                wrong.append(f"{form.name}{form.suffix} of {folder}: forms {sorted(plain)}")
            if form.until < until and form.until not in plain:
                wrong.append(f"{form.name}{form.suffix} of {folder}: nothing came in {form.until}")
            own = {version for version in per_thread if form.since <= version < min(form.until, until)}
            if own != ({form.per_thread_since} if form.per_thread_since else set()):
                wrong.append(f"{form.name}{form.suffix} of {folder}: per thread {sorted(per_thread)}")
    assert wrong == []


def test_signatures_are_those_of_the_header(tmp_path: Path) -> None:
    for folder in need_headers():
        lines = [SIGNATURES]
        for form in forms():
            if form.since > version_of(folder):
                continue
            names = [f"PFN_{form.name}_v{form.since}"]
            if form.per_thread_since:
                names.append(f"PFN_{form.name}_v{form.per_thread_since}{form.per_thread}")
            lines += [f"namespace own {{ SAME({name}, Result (*)({form.parameters})); }}" for name in names]
        # With it the header also shows forms that were replaced; runtimes still ask for them.
        done = compile_with(folder, "\n".join(lines), tmp_path, "-D__CUDA_API_VERSION_INTERNAL")
        assert done.returncode == 0, f"{folder}\n{done.stderr[-4000:]}"


def defines(folder: Path, name: str) -> bool:
    text = (folder / "cuda.h").read_text(encoding="utf-8", errors="replace")
    return re.search(rf"#\s*define {name}\s", text) is not None


def newest(form: Form, folder: Path) -> bool:
    """Whether a form is what its name means in code compiled with these headers."""
    if not form.since <= version_of(folder) < form.until:
        return False
    # cuLaunchHostFunc_v2 goes by that name alone: the one without the suffix means the first form for ever.
    own_name = bool(form.suffix) and defines(folder, form.name + form.suffix)
    return not own_name and (defines(folder, form.name) or not form.suffix)


def test_symbols_are_those_of_the_header(tmp_path: Path) -> None:
    for folder in need_headers():
        listed = [form for form in forms() if newest(form, folder)]
        assert len(listed) >= 20
        for per_thread in (False, True):
            lines = [SYMBOLS, "constexpr bool same(const char* a, const char* b) {"]
            lines += ["  while (*a != 0 && *a == *b) { ++a; ++b; } return *a == *b; }"]
            for form in listed:
                symbol = f"{form.name}{form.suffix}{form.per_thread if per_thread else ''}"
                lines.append(f'static_assert(same(SYMBOL({form.name}), "{symbol}"), "{symbol}");')
            options = ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",) if per_thread else ()
            done = compile_with(folder, "\n".join(lines), tmp_path, *options)
            assert done.returncode == 0, f"{folder}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize(
    "declared",
    [
        "cuCtxSynchronize_v2(CUcontext ctx);",
        "cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode);",
    ],
)
def test_symbols_that_no_name_means_are_declared(declared: str) -> None:
    (form,) = [form for form in forms() if form.suffix and declared.startswith(form.name + form.suffix + "(")]
    folder = max(need_headers(), key=version_of)
    text = (folder / "cuda.h").read_text(encoding="utf-8", errors="replace")
    if version_of(folder) >= form.since:
        assert f"CUresult CUDAAPI {declared}" in text


def test_the_double_answers_by_the_same_forms() -> None:
    text = (ROOT / "tests/fakes/driver_forms.def").read_text(encoding="utf-8")
    listed: dict[str, set[int]] = {}
    for name, since in re.findall(r"^FORM\((\w+), *\w*, (\d+)\)", text, re.MULTILINE):
        listed.setdefault(name, set()).add(int(since))
    assert len(listed) > 70
    newest_of: dict[str, set[int]] = {}
    for folder in need_headers():
        for name in listed:
            newest_of.setdefault(name, set()).update(types_of(folder, name)[0])
    # A later release may give a function another form, and older headers lack some: what both know is compared.
    newest_header = max(map(version_of, need_headers()))
    listed = {name: {v for v in forms_of if v <= newest_header} for name, forms_of in listed.items()}
    late = {name: {v for v in found if v < known_until()} - listed[name] for name, found in newest_of.items()}
    assert {name: listed[name] - found for name, found in newest_of.items() if listed[name] - found} == {}
    assert {name: missing for name, missing in late.items() if missing} == {}
