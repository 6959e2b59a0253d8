"""The newest releases of what others publish that the tests of interfaces are run against: which, and why.

    python tests/contract/newest_wheels.py FOLDER    make environments of them (6 GB), print the commands that use them
    python tests/contract/newest_wheels.py --check   name those of which the index has a newer one: exit code 1 then

`make test` needs none of them: it has the small wheels of the extra `test` and the torch of the Makefile. The Makefile
stays with a torch that is to be had without CUDA; that its successors pass the tests of the probes is seen with the
first environment in STASHTRACE_TEST_PYTHON.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Wheel(NamedTuple):
    """A release that tests are run against."""

    name: str
    version: str
    why: str


#: Installed with all that they require: the libraries that torch was built for, which are older than the newest.
FRAMEWORKS = (
    Wheel("torch", "2.15.0", "probes, hooks that its libraries reach; it brings NCCL 2.30.7 and CUPTI 13.2"),
    Wheel("torchdata", "0.11.0", "the loader that the probes also know"),
    Wheel("cupy-cuda13x", "14.2.0", "a program with a CUDA runtime of its own"),
    Wheel("pillow", "13.0.0", "images of the scripts that are traced"),
)
#: Installed alone, since no release of a framework requires them yet.
LIBRARIES = (
    Wheel("nvidia-nccl-cu13", "2.32.3", "calls, signatures, ncclCollConfig_t with launchCompletionEvent"),
    Wheel("nvidia-cuda-cupti", "13.5.25", "layouts of activity records, and what a profiler hears beside us"),
    Wheel("nvidia-cuda-cupti-cu12", "12.9.79", "the same of CUDA 12, whose last release this is"),
    Wheel("nvidia-cuda-runtime", "13.5.37", "what it looks up, signatures of its functions, forms of the driver's"),
    Wheel("nvidia-cuda-runtime-cu12", "12.9.79", "the same of CUDA 12, whose last release this is"),
    Wheel("nvidia-cuda-crt", "13.5.37", "headers without which those of the runtime do not compile"),
    Wheel("nvidia-nvml-dev", "13.5.37", "numbers of NVML's fields"),
)
ENVIRONMENTS = {"frameworks": FRAMEWORKS, "libraries": LIBRARIES}


def newest(name: str) -> str:
    """Return the version of a wheel on the list."""
    (version,) = [wheel.version for wheel in (*FRAMEWORKS, *LIBRARIES) if wheel.name == name]
    return version


def release(name: str) -> str:
    """Return major and minor of it, by which pages call it."""
    return ".".join(newest(name).split(".")[:2])


def pythons(folder: Path) -> list[Path]:
    return [folder / environment / "bin/python" for environment in ENVIRONMENTS]


def make(folder: Path) -> None:
    """Make the environments, with this Python."""
    for (environment, wheels), python in zip(ENVIRONMENTS.items(), pythons(folder), strict=True):
        subprocess.run([sys.executable, "-m", "venv", str(folder / environment)], check=True)
        alone = ["--no-deps"] if wheels is LIBRARIES else []
        wanted = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *alone, *wanted], check=True)


def published(name: str) -> str:
    """Return what pip says of a package's versions."""
    command = [sys.executable, "-m", "pip", "index", "versions", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def behind(index: Callable[[str], str] = published) -> Iterator[str]:
    """Name each wheel of the list of which the index has another release."""
    for wheel in (*FRAMEWORKS, *LIBRARIES):
        found = re.match(rf"{re.escape(wheel.name)} \(([^)]+)\)", index(wheel.name))
        latest = found[1].partition("+")[0] if found else "no release"
        if latest != wheel.version:
            yield f"{wheel.name} {wheel.version}: the index has {latest}"


def main(arguments: Sequence[str]) -> int:
    """Make the environments, or compare the list with the index; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", nargs="?", type=Path, help="folder for the environments")
    what.add_argument("--check", action="store_true", help="compare the list with the index")
    options = parser.parse_args(arguments)
    if options.check:
        found = list(behind())
        print("\n".join(found) or "the list has the newest releases")
        return 1 if found else 0
    folder = options.folder.absolute()
    make(folder)
    named = shlex.quote(os.pathsep.join(map(str, pythons(folder))))
    probes = shlex.quote(str(pythons(folder)[0]))
    print(f"STASHTRACE_WHEELS_PYTHON={named} python -m pytest tests/contract tests/collectors/test_cupti_abi.py \\")
    print("  tests/collectors/test_nvml.py tests/integration/test_wheels.py")
    print(f"STASHTRACE_TEST_PYTHON={probes} python -m pytest tests/collectors/test_torch*.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
