"""Builds the native tests and runs each as one test; a sanitizer build runs the same ones.

``STASHTRACE_SANITIZE=address`` or ``thread`` in the environment chooses the build.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native.native_build import OPTIONS, build

SANITIZE = os.environ.get("STASHTRACE_SANITIZE", "")
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("test_*.cpp"))


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """Folder of the built programs; kept between runs, so only what changed is compiled."""
    folder = Path(request.config.cache.mkdir("native-" + (SANITIZE or "plain")))  # type: ignore[union-attr]
    try:
        return build(folder, "native_programs", SANITIZE) / "bin"
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", PROGRAMS)
def test_native(programs: Path, name: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")}
    command = [str(programs / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment | OPTIONS)
    assert done.returncode == 0, done.stderr
