"""Give the environment of `make demo` and `make test` a torch: the caller's where it has one that works, else pip's.

    python3 scripts/provide_torch.py .venv --requirement torch==2.13.0 [--index-url URL] [--install]

Run it with the caller's Python, from which the environment was made. torch's default wheel brings gigabytes of CUDA,
so it is downloaded only where the caller's Python has no torch that works, and not before its size is printed.

A torch that is there is not copied: `ENV/torch-of-caller` holds links to its packages and to what it requires, and a
`.pth` file puts that folder at the end of the environment's path. Only these packages become visible, so nothing else
of the caller's (other versions, plugins of pytest) gets into the tests. Their metadata is left out: pip then does not
know the linked packages, and never removes a file that belongs to the caller.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

#: The oldest torch that the probes know (extra `torch` of pyproject.toml).
OLDEST_TORCH = (2, 2)
LINKS = "torch-of-caller"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
IMPORT_LIMIT_S = 300

#: What a requirement and all that it requires weigh on PyPI, in bytes, by machine: sums of the sizes that the index
#: states for the files of `uv pip compile --format pylock.toml --python-version 3.11 --python-platform
#: x86_64-manylinux_2_28` (29 files, 2026-11). The same torch without CUDA is one file of 192 MB.
PYPI_BYTES = {("torch==2.13.0", "x86_64"): 2_740_713_029, ("torch==2.13.0", "aarch64"): 2_868_265_466}

#: Prints the version, the folder and whether the example can train with this torch; any failure is an exit code.
PROBE = """
import json, os, sys
import numpy, torch, torch.distributed, torch.utils.data
torch.from_numpy(numpy.zeros(1))
gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
where = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
print(json.dumps({"version": torch.__version__, "gloo": bool(gloo), "folder": where}))
"""
#: The caller's Python may have no numpy; the environment has.
PROBE_OF_CALLER = PROBE.replace("import numpy, torch,", "import torch,").replace("torch.from_numpy(numpy.zeros(1))", "")

#: The kernel ends the path of an interpreter at its first space, so a shell starts it; to Python that line is a text.
TORCHRUN = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from torch.distributed.run import main

sys.exit(main())
"""


class Unusable(Exception):
    """Why the caller's torch is not taken; the message ends a sentence."""


def say(text: str) -> None:
    """Print a line at once: pip, which follows, writes to the same place."""
    print(text, flush=True)


def probe(python: str, code: str) -> dict[str, object]:
    """Import torch in a separate process, which a broken one may crash.

    Raises
    ------
    Unusable
        If the import fails or takes longer than ``IMPORT_LIMIT_S``, or if the version or gloo is missing.
    """
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, errors="replace", timeout=IMPORT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"its import takes longer than {IMPORT_LIMIT_S} s") from None
    except OSError as error:
        raise Unusable(str(error)) from None
    if done.returncode < 0:
        raise Unusable(f"its import is ended by signal {-done.returncode}")
    if done.returncode:
        raise Unusable((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    numbers = tuple(int(part) for part in re.findall(r"\d+", str(found["version"]))[:2])
    if numbers < OLDEST_TORCH:
        raise Unusable(f"version {found['version']} is older than {'.'.join(map(str, OLDEST_TORCH))}")
    if not found["gloo"]:
        raise Unusable(f"version {found['version']} was built without gloo, by which the ranks of the example talk")
    return found


def has_torch() -> bool:
    """Return whether this Python finds a package called torch, without importing it."""
    found = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"],
        capture_output=True,
        check=False,
    )
    return found.returncode == 0


def required_packages(distribution: str) -> set[Path]:
    """Find the files and folders that a distribution and all that it requires put on the path of this Python.

    Extras are left out, and so is what is required but not installed: the caller's torch works without.
    """
    todo, seen, found = [distribution], set(), set()
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in package.requires or ():
            wanted, _, condition = requirement.partition(";")
            if "extra" not in condition:
                todo.append(re.match(r"[\w.-]+", wanted.strip())[0])  # type: ignore[index]
        top = {Path(str(file)).parts[0] for file in package.files or ()}
        if not top:  # the packages of distributions of Linux keep no list of files
            top = set((package.read_text("top_level.txt") or name.replace("-", "_")).split())
        for entry in top:
            path = Path(str(package.locate_file(entry)))
            metadata = path.suffix in (".dist-info", ".egg-info", ".pth") or entry in ("..", "__pycache__")
            if path.exists() and not metadata:
                found.add(path)
    return found


def site_folder(python: Path) -> Path:
    """Folder of the environment into which pip installs."""
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    return Path(subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def unlink(environment: Path, python: Path) -> None:
    """Remove the links; what they lead to stays."""
    (site_folder(python) / f"{LINKS}.pth").unlink(missing_ok=True)
    if (environment / LINKS).exists():
        (environment / "bin/torchrun").unlink(missing_ok=True)
        shutil.rmtree(environment / LINKS)  # it removes links, and does not follow them


def link(environment: Path, python: Path) -> str:
    """Make the caller's torch importable in the environment, and return its version.

    Raises
    ------
    Unusable
        If this Python has no torch that works, or if it does not work from the environment.
    """
    caller = probe(sys.executable, PROBE_OF_CALLER)
    packages = required_packages("torch") | {Path(str(caller["folder"])) / "torch"}
    links = environment / LINKS
    links.mkdir()
    for package in packages:
        if package.name != "numpy":  # pip installs one, of a version that is known to fit
            (links / package.name).symlink_to(package.resolve())
    # A name and a version, for what asks for torch's version; no list of files by which pip could remove them.
    described = links / f"torch-{caller['version']}.dist-info"
    described.mkdir()
    lines = ("Metadata-Version: 2.1", "Name: torch", f"Version: {caller['version']}", "")
    (described / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    (site_folder(python) / f"{LINKS}.pth").write_text(f"{links.resolve()}\n", encoding="utf-8")
    torchrun = environment / "bin/torchrun"
    torchrun.write_text(TORCHRUN.format(python=python.absolute()), encoding="utf-8")
    torchrun.chmod(0o755)
    here = probe(str(python), PROBE)
    if here["version"] != caller["version"]:
        raise Unusable(f"the environment finds version {here['version']}")
    return str(here["version"])


def size_text(requirement: str, index_url: str) -> str:
    """Say what the download weighs: the figure where it is known, else what is known of it."""
    if index_url:
        return f"{requirement} comes from {index_url}; pip names each file and its size before it downloads it."
    machine = platform.machine()
    known = PYPI_BYTES.get((requirement, machine))
    if known is None:
        size = "gigabytes, since it requires the libraries of CUDA"
    else:
        size = f"{known / 1e9:.1f} GB to download ({machine}), most of it libraries of CUDA"
    return (
        f"{requirement} will be installed. From PyPI that is {size}.\n"
        f"A build without CUDA is less than a tenth of that: make TORCH_INDEX={CPU_INDEX}\n"
        "pip names each file and its size before it downloads it."
    )


def install(python: Path, requirement: str, index_url: str) -> None:
    """Install torch by pip; its output names each file with its size."""
    say(size_text(requirement, index_url))
    index = ["--index-url", index_url] if index_url else []
    subprocess.run([str(python), "-m", "pip", "install", *index, requirement], check=True)


def provide(environment: Path, requirement: str, index_url: str, *, only_install: bool) -> None:
    """Link the caller's torch, or install one, and install what else the example needs."""
    python = environment / "bin/python"
    if Path(sys.prefix).resolve() == environment.resolve() and not only_install and not index_url and has_torch():
        # It is active, and `python3` is its own: who made it, and had a torch, is no longer known.
        say(f"The torch of {environment} stays (make TORCH=torch==X installs one).")
        return
    unlink(environment, python)
    # Pillow makes the example's images real JPEG files.
    subprocess.run([str(python), "-m", "pip", "install", "-q", "numpy", "pillow"], check=True)
    if not only_install and not index_url and has_torch():
        try:
            version = link(environment, python)
        except Unusable as reason:
            unlink(environment, python)
            say(f"The torch of {sys.executable} is not taken: {reason}.")
        else:
            say(f"torch {version} of {sys.executable} is taken: no download (make TORCH=torch==X installs one).")
            return
    install(python, requirement, index_url)


def main(arguments: list[str]) -> int:
    """Return 0, or the exit code of the pip that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path, help="virtual environment, made by this Python")
    parser.add_argument("--requirement", required=True, help="what pip installs, such as torch==2.13.0")
    parser.add_argument("--index-url", default="", help="index to install it from; by default pip's")
    parser.add_argument("--install", action="store_true", help="install it even if this Python has one")
    options = parser.parse_args(arguments)
    try:
        provide(options.environment, options.requirement, options.index_url, only_install=options.install)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))}: exit code {error.returncode}", file=sys.stderr)
        return error.returncode if error.returncode > 0 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
