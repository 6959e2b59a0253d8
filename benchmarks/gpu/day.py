"""A day with a device: minutes in all, so nothing is built there, and each part has a limit in seconds.

    python benchmarks/gpu/day.py prepare [--python python3.12]   here: build for its Python, write the commit down
    python benchmarks/gpu/day.py run --out $OUT [--limit-s 560]  there: the parts in their order, results as they come

What `prepare` makes travels with the files: it prints their paths, which git ignores. What did not arrive is built
there, at the price of the last parts. `run` writes the files of collect.py. A part that outlasts its seconds is
interrupted and keeps what it had; where an answer says that recording would harm the job, the rest is not reached.
Standard library only.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/gpu")]

import collect  # noqa: E402
import harness  # noqa: E402
from collect import Planned  # noqa: E402

#: A session of ten minutes less what the machine needs to begin and to hand the files back.
LIMIT_S = 560
#: Answers without which recording may harm the job: whatever else was found is worth nothing then.
HARMFUL = ("bare_thread_mode", "capture_beside_polling")
RESNET = ("--models", "resnet")


def harm(found: dict[str, Any]) -> str:
    """Say which answers of the driver forbid to go on; empty if none does."""
    bad = [problem for problem in found.get("problems", ()) if problem.partition(":")[0] in HARMFUL]
    return f"recording may break the job: {'; '.join(bad)}" if bad else ""


#: Where what was built here did not arrive.
BUILD = Planned("build", 180, collect.build)
PLAN = (
    Planned("probe", 30, collect.probe),
    Planned("ask", 60, collect.ask, harm),
    Planned("job", 40, collect.device_job),
    Planned("nccl", 100, collect.nccl_job),
    Planned("training", 150, collect.running_benchmark("training", *RESNET, "--rounds", "3", "--variants", "default")),
    Planned("attribution", 120, collect.running_tests("gpu", "test_attribution_on_gpu.py", "test_cupti_gpu.py")),
    Planned(
        "ranks", 100, collect.running_tests("gpu", "test_two_ranks_one_gpu.py", only="late or matched", name="ranks")
    ),
)


def prepare(python: str) -> int:
    """Build the extension for another Python and write the commit down; prints what has to travel."""
    folder = ROOT / "build/day"
    folder.mkdir(parents=True, exist_ok=True)
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    cmake, ninja = (shutil.which(name, path=places) or name for name in ("cmake", "ninja"))
    import pybind11

    configure = [cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder / "native")]
    configure += [f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    configure += [f"-DPython_EXECUTABLE={shutil.which(python) or python}"]
    install = [cmake, "--install", str(folder / "native"), "--prefix", str(ROOT)]
    for command in (configure, [cmake, "--build", str(folder / "native")], install):
        subprocess.run(command, check=True, stdout=sys.stderr)
    (ROOT / harness.COMMIT_FILE).write_text(harness.commit_of(ROOT) + "\n", encoding="utf-8")
    for path in travelling(python):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 2**20:.1f} MiB")
    return 0


def travelling(python: str) -> list[Path]:
    """Return the files that git ignores and a device's machine needs."""
    program = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    suffix = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    package = ROOT / "stashtrace"
    libraries = [package / "libstashtrace.so", package / "libstashtrace_lookup.so"]
    return [package / f"_native{suffix}", *libraries, ROOT / harness.COMMIT_FILE]


def missing() -> list[str]:
    """Return what of the build did not travel, or is for another Python."""
    return [str(path.relative_to(ROOT)) for path in travelling(sys.executable) if not path.is_file()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the day, or run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("prepare", help="build here what travels")
    build.add_argument(
        "--python", default="python3.12", help="of the version that the device's machine has (python3.12)"
    )
    run = commands.add_parser("run", help="run the parts on the device's machine")
    run.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder of the result; else $OUT")
    run.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"seconds for all of it ({LIMIT_S})")
    run.add_argument("--parts", nargs="+", choices=[one.name for one in PLAN], help="of these alone (all)")
    options = parser.parse_args(arguments)
    if options.command == "prepare":
        return prepare(options.python)
    if not options.out:
        parser.error("name a folder: --out FOLDER, or $OUT")
    plan = [one for one in PLAN if options.parts is None or one.name in options.parts]
    if absent := missing():
        print(f"not there: {', '.join(absent)}", file=sys.stderr)
        plan.insert(0, BUILD)
    command = ["python", "benchmarks/gpu/day.py", *(arguments or sys.argv[1:])]
    return collect.collect(plan, Path(options.out), options.limit_s, command, {}, lambda run: "")


if __name__ == "__main__":
    sys.exit(main())
