"""What every benchmark shares: describe the machine, summarise repetitions, write one JSON file.

Called by ``benchmarks/bench_*.py``. Standard library only. A result holds no host name and no path of the machine.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Below a copy of the files; `benchmarks/gpu/day.py prepare` writes it.
COMMIT_FILE = "build/day/commit"


def machine() -> dict[str, Any]:
    """CPU, memory, kernel, libraries and load: what a figure depends on."""
    cpu = _first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine()
    memory_kib = int(_first_match("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0)
    flags = _first_match("/proc/cpuinfo", r"^flags\s*:\s*(.+)$") or ""
    return {
        "cpu": cpu,
        "cores_count": os.cpu_count(),
        "virtual": "hypervisor" in flags.split(),
        "memory_bytes": memory_kib * 1024,
        "kernel": platform.release().split("-")[0],
        "libc": " ".join(platform.libc_ver()),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def versions(*modules: str) -> dict[str, str]:
    """Python, compiler and the project's commit, and the versions of importable modules."""
    found = {"python": platform.python_version(), "gcc": _output(["gcc", "-dumpfullversion"]) or "not found"}
    found["commit"] = commit_of(ROOT)
    for name in modules:
        module = __import__(name)
        found[name] = str(getattr(module, "__version__", "unknown"))
    return found


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, with ``-dirty`` where files other than results differ from it.

    A copy of the files without the repository says it by the file ``COMMIT_FILE``.
    """
    git = ["git", "-C", str(checkout)]
    commit = _output([*git, "describe", "--always"])
    carried = checkout / COMMIT_FILE
    if not commit and carried.is_file():
        return carried.read_text(encoding="utf-8").strip()
    commit = commit or "unknown"
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/benchmarks/results"])
    return f"{commit}-dirty" if changed else commit


def summary(values: Sequence[float]) -> dict[str, float | int]:
    """Median, quartiles, extremes and count of repetitions."""
    if not values:
        raise ValueError("no repetitions to summarise")
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    return {
        "median": statistics.median(ordered),
        "p25": quartiles[0],
        "p75": quartiles[2],
        "min": ordered[0],
        "max": ordered[-1],
        "count": len(ordered),
    }


def page_facts(result: Path) -> dict[str, Any]:
    """What the page of a result says of how it was made, for ``str.format``; the result names the version of torch."""
    about = json.loads(result.read_text(encoding="utf-8"))
    machine = about["machine"]
    return {
        "command": about["command"],
        "date": about["date"],
        "cores": machine["cores_count"],
        "cpu": machine["cpu"],
        "virtual": " (virtual)" if machine["virtual"] else "",
        "kernel": machine["kernel"],
        "python": about["versions"]["python"],
        "torch": about["versions"]["torch"],
        "load": machine["load_average"][0],
    }


def in_pairs(count: int) -> Iterator[tuple[int, bool]]:
    """(number of the pair, whether traced) of both jobs of that number of pairs; which is first alternates."""
    for pair in range(count):
        for traced in (False, True) if pair % 2 else (True, False):
            yield pair, traced


def run_job(command: Sequence[str], folder: Path, *, traced: bool) -> None:
    """Run a Python job of one thread a process in a new folder, with or without the tracer; its records go to ``run``.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    folder.mkdir()
    tracer = [sys.executable, "-m", "stashtrace", "run", "--no-merge", "--out", str(folder / "run"), "--"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    words = [*(tracer if traced else []), *command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")


def write_result(
    name: str, figures: dict[str, Any], *, command: str, modules: Sequence[str] = (), folder: Path = RESULTS
) -> Path:
    """Write ``<folder>/<name>.json`` and return its path.

    Parameters
    ----------
    name : str
        Of the benchmark; an earlier result of the same name is replaced.
    figures : dict
        Figure name (its unit ends it) -> number, or what :func:`summary` returns.
    command : str
        What to type in the repository to repeat it.
    modules : sequence of str
        Imported packages whose versions matter.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": command,
        "machine": machine(),
        "versions": versions(*modules),
        "figures": rounded(figures),
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def earlier_rows(name: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of the result in a folder, for a benchmark that is run in pieces; none if it is of another commit."""
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["versions"]["commit"] != versions()["commit"]:
        return []
    rows: list[dict[str, Any]] = content["figures"]["rows"]
    return rows


def rounded(value: Any) -> Any:
    """The same structure with floats cut to five significant digits."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    if isinstance(value, float) and value and math.isfinite(value):
        return round(value, 4 - math.floor(math.log10(abs(value))))
    return value


def _first_match(path: str, pattern: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return ""
    return found.group(1) if found else ""


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return ""
