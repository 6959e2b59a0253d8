"""Attacks that outsiders wrote as shell scripts, read where they lie next to the checkout: what each must print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared/trust"


@dataclass(frozen=True)
class Script:
    """A script, the programs it needs, and patterns of lines that its output must have, in any order."""

    name: str
    needs: tuple[str, ...]
    lines: tuple[str, ...]


SCRIPTS = (
    Script("faketime_hang.sh", ("gcc", "faketime"), ("untraced rc 0", "ended", "traced rc 0")),
    Script("fd2_dropuid.sh", ("gcc",), ("untraced: 0123456789abcdef", "traced: 0123456789abcdef")),
    Script("xfsz_stderr.sh", ("gcc",), ("untraced rc 0", "traced rc 0")),
    # The file system stands still for 10 s; the job's threads, which read /dev/zero, for less than half of that.
    Script(
        "fuse_stall_and_death.sh",
        ("gcc", "bindfs", "fusermount3"),
        (r"longest gap [0-4]\.\d+ s", "rc 0", "job rc 0", "stashtrace rc 0"),
    ),
)


@pytest.mark.trust
@pytest.mark.root
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_says_what_it_says_of_a_job_that_nobody_traces(script: Script) -> None:
    path = SHARED / script.name
    if not path.exists():
        pytest.skip(f"no {path}")
    if os.geteuid() != 0 or (missing := [name for name in script.needs if shutil.which(name) is None]):
        pytest.skip("needs root" if os.geteuid() != 0 else f"needs {', '.join(missing)}")
    own = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(path)], env=own, capture_output=True, text=True, timeout=300)
    missing = [line for line in script.lines if not re.search(f"^{line}$", done.stdout, re.MULTILINE)]
    assert not missing, done.stdout + done.stderr
