"""Makes the sdist, a wheel from it and an environment with nothing but the wheel, all without a network.

The sdist is made of a copy of the checkout: setuptools links its files into the folder that it packs. The build of
a checkout is kept (``build/native-*``). Where it is of these sources, its objects stand in for the compiler; the links,
which take a tenth of the time, are made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkout_files import ROOT, project_files
from native.native_build import KEPT_BUILD, objects_are_of_these_sources

#: Copies the kept object of a source, or compiles it. The paths of objects are relative to the build folder.
_LAUNCHER = """#!/bin/sh
object= depfile= source= previous=
for word do
  case $previous in -o) object=$word ;; -MF) depfile=$word ;; -c) source=$word ;; esac
  previous=$word
done
if [ -n "$source" ] && [ -f "$KEPT_BUILD/$object" ]; then
  cp "$KEPT_BUILD/$object" "$object" && printf '%s:\\n' "$object" > "$depfile"
else
  exec "$@"
fi
"""


def make_sdist(folder: Path) -> Path:
    """Pack a copy of the checkout; return the archive."""
    copy = folder / "checkout"
    for name in project_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    script = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    _run([sys.executable, "-c", script, str(folder)], cwd=copy)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def make_wheel(sdist: Path, folder: Path, variables: Mapping[str, str] = {}) -> Path:
    """Build a wheel with the tools of this environment; return it. ``variables`` are added to the environment."""
    environment = dict(os.environ)
    if objects_are_of_these_sources() and not variables:
        launcher = folder / "kept-objects"
        launcher.write_text(_LAUNCHER, encoding="utf-8")
        launcher.chmod(0o755)
        environment |= {
            "KEPT_BUILD": str(KEPT_BUILD),
            "CMAKE_ARGS": f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}",
        }
    options = [
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        "--wheel-dir",
        str(folder),
    ]
    _run([sys.executable, "-m", "pip", "wheel", *options, str(sdist)], environment=environment | variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


def bare_environment(folder: Path, wheel: Path) -> Path:
    """Install the wheel into a new environment without pip, and numpy by links; return its folder of programs."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    programs = folder / "bin"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    import numpy

    installed = Path(numpy.__file__).resolve().parents[1]
    for path in [*installed.glob("numpy"), *installed.glob("numpy.libs"), *installed.glob("numpy-*.dist-info")]:
        (packages / path.name).symlink_to(path)
    tomli = ["tomli"] if sys.version_info < (3, 11) else []
    for path in (path for name in tomli for path in installed.glob(f"{name}*")):
        (packages / path.name).symlink_to(path)
    options = ["--no-index", "--disable-pip-version-check", "--quiet", "--python", str(programs / "python")]
    _run([sys.executable, "-m", "pip", *options[-2:], "install", *options[:-2], str(wheel)])
    return programs


def _run(command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    kept = {k: v for k, v in (environment or os.environ).items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
    done = subprocess.run(
        command, cwd=cwd, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}"
