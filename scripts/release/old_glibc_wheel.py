"""Build a wheel that loads where glibc is as old as the wheels promise, without the containers of manylinux.

    python scripts/release/old_glibc_wheel.py --out dist-old [SDIST]

Zig brings a C++ compiler with the symbols of every glibc, so a link that needs a newer one fails. It is Clang, libc++:
what is built shows that the sources ask for nothing newer, and can be installed; releases are built by GCC in the
containers. SDIST is made of the checkout if it is not given. Takes five minutes on two cores. Needs ziglang, build and
pyelftools, and what builds the package.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from check_libraries import OLDEST_GLIBC, check

ROOT = Path(__file__).resolve().parents[2]
# Zig's linker does not know --exclude-libs; the list of exported symbols hides the same.
_COMPILER = """#!/bin/sh
for word do
  shift
  [ "$word" = -Wl,--exclude-libs,ALL ] || set -- "$@" "$word"
done
exec {python} -m ziglang {language} -target {machine}-linux-gnu.{glibc} "$@"
"""


def build(sdist: Path, out: Path) -> Path:
    """Build a wheel of an sdist with Zig's compiler; return it."""
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.glob("*.whl"))
    with tempfile.TemporaryDirectory() as folder:
        variables = {"CMAKE_ARGS": "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF"}  # else libc++ is built for it as well
        for variable, language in (("CC", "cc"), ("CXX", "c++")):
            script = Path(folder) / language
            script.write_text(
                _COMPILER.format(
                    python=shlex.quote(sys.executable),
                    language=language,
                    machine=platform.machine(),
                    glibc=".".join(map(str, OLDEST_GLIBC)),
                ),
                encoding="utf-8",
            )
            script.chmod(0o755)
            variables[variable] = str(script)
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
        subprocess.run([*command, str(sdist)], env=os.environ | variables, check=True)
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def main() -> int:
    """Build, check, and say where the wheel is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheel; it must not hold one yet")
    arguments = parser.parse_args()
    missing = [name for name in ("ziglang", "build", "elftools") if importlib.util.find_spec(name) is None]
    if missing:
        names = [{"elftools": "pyelftools"}.get(name, name) for name in missing]
        sys.stderr.write(f"error: not installed: {', '.join(names)}\nhint: pip install {' '.join(names)}\n")
        return 2
    if list(arguments.out.glob("*.whl")):
        sys.stderr.write(f"error: {arguments.out} holds a wheel already\nhint: name another folder\n")
        return 2
    sdist = arguments.sdist
    if sdist is None:
        command = [
            sys.executable,
            "-m",
            "build",
            "--sdist",
            "--no-isolation",
            "--outdir",
            str(arguments.out),
            str(ROOT),
        ]
        subprocess.run(command, check=True)
        (sdist,) = arguments.out.glob("*.tar.gz")
    wheel = build(sdist, arguments.out)
    wrong = check(wheel)
    sys.stdout.writelines(f"{line}\n" for line in [*wrong, str(wheel)])
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
