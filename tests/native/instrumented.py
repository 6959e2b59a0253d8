"""Plugin of pytest: the tests run on another build of the recorder, for sanitizers or for gcov.

``-p native.instrumented`` with STASHTRACE_TEST_LIBRARY (the build) and STASHTRACE_TEST_PRELOAD (libraries that must
stand first). Loaded before any test module, so that they import the replaced names. A finding ends its process with a
status that the tests do not expect; a file of reports is no way, since making it calls our hooks before the sanitizer
is up.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from stashtrace.record import environment
from stashtrace.record.options import DEFAULT_OPTIONS, RecordOptions

LIBRARY = Path(os.environ["STASHTRACE_TEST_LIBRARY"])
PRELOAD = os.environ.get("STASHTRACE_TEST_PRELOAD", "")

_plain = environment.traced_environment


@functools.wraps(_plain)
def traced_environment(base: Any, options: RecordOptions = DEFAULT_OPTIONS, **others: Any) -> dict[str, str]:
    """The environment of a traced command, with the sanitizer's libraries in front of ours."""
    if options.lookup_hook and PRELOAD:
        pytest.skip("a hook in front of dlsym breaks the start of the sanitizers")
    variables = _plain(base, options, **others)
    if PRELOAD:
        variables["LD_PRELOAD"] = f"{PRELOAD}:{variables['LD_PRELOAD']}"
    return variables


environment.LIBRARY_PATH = LIBRARY
environment.traced_environment = traced_environment


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if (
        PRELOAD
        and report.failed
        and not re.search(r"Sanitizer|runtime error|TimeoutExpired|no end within|\b66\b", report.longreprtext)
    ):
        report.outcome = "skipped"
        report.longrepr = (str(report.fspath), 0, f"no finding of the sanitizer: {report.longreprtext[-300:]}")
    return report
