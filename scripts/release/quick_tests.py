"""The quick half of the tests, against the stashtrace that is installed: what a wheel must pass to be published.

    python scripts/release/quick_tests.py [pytest options]

The quick half needs neither a compiler nor torch nor Parquet and is not marked slow: files, clocks, importers, the
attribution of steps, summaries, timelines, and the commands on recordings of plain programs. It runs in a copy of the
project without the package, so that no test can take the sources for what was installed. Needs pytest, pytest-xdist,
hypothesis and pandas; a test that needs more says so and skips.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = (
    "analysis/stragglers",
    "analysis/stalls",
    "analysis/steps",
    "calibration",
    "cli/test_reading.py",
    "cli/test_run.py",
    "exporters",
    "format",
    "importers",
    "loading",
    "record",
    "schema",
    "summary",
    "timeline",
)
#: These read the sources of the package, or stores of Parquet without asking for pyarrow.
NEED_MORE = (
    "importers/test_chakra.py",
    "importers/test_straggler.py",
    "loading/test_immutable_tables.py",
    "loading/test_lost_rows.py",
    "record/test_options.py",
)
LEFT_OUT = ("slow", "truth", "trust", "gpu", "torch", "wheels", "root")
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "dist", "stashtrace", "*.egg-info", "__pycache__")


def main() -> int:
    """Run pytest; return its exit code."""
    version = importlib.metadata.version("stashtrace")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=_NOT_COPIED)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        where = "import stashtrace, stashtrace._native as n; print(stashtrace.__version__, n.__file__)"
        command = [sys.executable, "-c", where]
        found = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True)
        tested, _, place = found.stdout.strip().partition(" ")
        if tested != version or Path(place).is_relative_to(ROOT):
            sys.stderr.write(f"error: {place} is not an installed wheel\nhint: pip install dist/*.whl, without -e\n")
            return 2
        sys.stderr.write(f"stashtrace {version}: {place}\n")
        chosen = ["-m", " and ".join(f"not {mark}" for mark in LEFT_OUT), *(f"tests/{name}" for name in CHOSEN)]
        chosen += [f"--ignore=tests/{name}" for name in NEED_MORE]
        words = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", *sys.argv[1:], *chosen]
        return subprocess.run(words, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
