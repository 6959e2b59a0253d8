"""Starts every test from the same signals and the same examples, and holds what must not be skipped.

``STASHTRACE_MUST_RUN="torch compiler"`` turns a skip for want of one of these into a failure: continuous integration
installs them, so a skip there would hide a broken installation. Names: the keys of ``_MUST_RUN``.

``--record FILE`` writes each test's outcome and how many measurements it took as a result of ``benchmarks/harness.py``.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

# Tests see every fault of ours: else it would cost a line of an answer, which few of them look at. Set before anything
# of the package is imported, for this process and for the commands that it starts.
os.environ["STASHTRACE_FAULTS"] = "raise"

import measurements
import pytest
from hypothesis import settings

# The same code gives the same verdict: properties are tried on examples that do not change from run to run, however
# slow the machine. `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("thorough", derandomize=True, deadline=None, database=None)  # tests/support/examples.py
settings.register_profile("explore", derandomize=False, deadline=None, database=None, max_examples=1000)
settings.load_profile("fixed")

# A runner in the background of a shell, or under nohup, inherits these as ignored and would hand that on to every
# job that a test starts. An ignored SIGINT also keeps Python from setting its handler.
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # while tests are collected, all of which stay: two fifths of the time that this takes

#: What may be required to run -> the reasons that tests give when they skip for want of it.
_MUST_RUN = {
    "torch": r"could not import 'torch'|torch is not installed",
    "compiler": r"no C(\+\+)? compiler|cmake and ninja are needed|no nm on this machine|readelf",
    "packages": r"could not import '(pyarrow|pandas|matplotlib|dask|distributed|fsspec|viztracer|wasmtime)"
    r"|could not import '(elftools|cyclonedx|scikit_build_core|pybind11|prometheus_client|opentelemetry)"
    r"|stores are Parquet files|Dask|fsspec|viztracer|wasmtime|no CUDA headers|no nvml.h|stashtrace\[remote\]"
    r"|clang-format|towncrier|mkdocs|markdown-it",
    "chromium": r"no chromium is installed",
    "frameworks": r"STASHTRACE_(TRACKERS|RAY)_PYTHON names no Python|could not import '(kubernetes_validate|kubeflow)",
}
_REQUIRED = os.environ.get("STASHTRACE_MUST_RUN", "").split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write outcomes and measurements as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record"):
        config.pluginmanager.register(_Record(config), "stashtrace-record")
    unknown = set(_REQUIRED) - _MUST_RUN.keys()
    if unknown:
        raise pytest.UsageError(f"STASHTRACE_MUST_RUN: {sorted(unknown)} is not among {sorted(_MUST_RUN)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: workers take whole files, and a long one that begins last is waited for."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Let the collector of garbage leave the thousands of tests alone, that live as long as the process.

    It also looks more seldom then: by default it takes a tenth of the time of tests that make tables.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


def _refuse_skip(report: Any) -> None:
    """Make a skipped report a failed one if its reason is among those that must not occur here."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    missing = [name for name in _REQUIRED if re.search(_MUST_RUN[name], reason)]
    if missing:
        report.outcome = "failed"
        report.longrepr = f"must run here (STASHTRACE_MUST_RUN names {', '.join(missing)}): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(report)
    return report


class _Record:
    """Collects what ``--record`` writes. Tests run in this one process then, without workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = measurements.taken_count
        done = yield
        self._tests.setdefault(item.nodeid, {})["measurements_count"] = measurements.taken_count - before
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {})
        if report.when == "call" or report.outcome != "passed":
            test |= {"outcome": report.outcome, "seconds": round(report.duration, 2)}
            if report.skipped and isinstance(report.longrepr, tuple):
                test["why"] = report.longrepr[2]

    def pytest_sessionfinish(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
        import harness

        file: Path = self._config.getoption("--record")
        marks = self._config.getoption("-m")
        figures = {"tests": self._tests}
        command = f"python -m pytest -m {marks} --record {file} tests"
        harness.write_result(file.stem, figures, command=command, folder=file.parent)
