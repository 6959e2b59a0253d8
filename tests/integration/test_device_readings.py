"""All tests of devices, in both readings of what cuda.h leaves open: does a call need a current context?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from traced import ROOT

TESTS = [
    "tests/collectors/test_cuda.py",
    "tests/collectors/test_device_streams.py",
    "tests/collectors/test_nccl_doubles.py",
    "tests/integration/test_device_jobs.py",
    "tests/integration/test_device_contexts.py",
]


@pytest.mark.trust
@pytest.mark.parametrize("reading", ["needed", "free"])
def test_everything_passes_in_either_reading(reading: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not truth and not trust", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"FAKE_CONTEXT": reading}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
