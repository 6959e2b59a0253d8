"""`stashtrace run` with metrics: what is refused before the job starts, and where they go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from stashtrace.cli import main
from stashtrace.cli.commands.run import open_outlets, parser
from stashtrace.errors import OutputError, UsageError
from stashtrace.live.state import read_states

ROOT = Path(__file__).resolve().parents[2]
JOB = [sys.executable, "-c", "open('began', 'w')"]


def outlets_of(*words: str):
    return open_outlets(parser().read([*words, "--live"]))


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (["--metrics-file", "."], "prometheus_client", "metrics"),
        (["--metrics-port", "0"], "prometheus_client", "metrics"),
        (["--otlp"], "opentelemetry-exporter-otlp-proto-http", "otel"),
    ],
)
def test_a_missing_package_is_said_before_the_job(
    words: list[str],
    package: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stashtrace.cli.commands.run.find_spec", lambda name: None)
    assert main(["run", *words, "--", *JOB]) == 2
    assert capsys.readouterr().err == (
        f"error: {words[0]} needs {package}, which is not installed\n\nhint: `pip install 'stashtrace[{extra}]'`\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_said_before_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", "--metrics-port", str(port), "--", *JOB]) == OutputError.exit_code
    assert capsys.readouterr().err == (
        f"error: --metrics-port cannot listen at port {port} of 127.0.0.1: address already in use\n"
        "\nhint: choose another port, or 0 for one that is free\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "http", "-1", "65536", ":9477", "node07:", "::1:9477"])
def test_a_port_that_is_none(text: str) -> None:
    pytest.importorskip("prometheus_client")
    with pytest.raises(UsageError, match="is no port"):
        outlets_of(f"--metrics-port={text}")


@pytest.mark.parametrize(
    ("text", "host"), [("0", "127.0.0.1"), ("localhost:0", "127.0.0.1"), ("0.0.0.0:0", "0.0.0.0"), ("[::1]:0", "::1")]
)
def test_the_address_is_the_loopback_unless_another_is_given(text: str, host: str) -> None:
    pytest.importorskip("prometheus_client")
    if host == "::1" and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 on this machine")
    outlets = outlets_of("--metrics-port", text)
    (bound,) = outlets.sockets
    with bound:
        assert bound.getsockname()[0] == host
        port = bound.getsockname()[1]
        assert outlets.url == f"http://{'[::1]' if host == '::1' else host}:{port}/metrics"
        assert not bound.get_inheritable(), "the job would hold the port"


def test_nothing_asked_for_is_nothing() -> None:
    outlets = outlets_of()
    assert (outlets.arguments, outlets.sockets, outlets.url) == ([], [], "")


def test_a_job_goes_on_without_the_folder_and_the_collector(tmp_path: Path) -> None:
    """The port answers while the job runs, of this host alone; each loss is said once, and noted."""
    pytest.importorskip("prometheus_client")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    code = "import os, time\nend = time.monotonic() + 60\nwhile not os.path.exists('end') and time.monotonic() < end: "
    words = [sys.executable, "-m", "stashtrace", "run", "--out", "run", "--no-merge", "--metrics-file", "none"]
    with subprocess.Popen(
        [*words, "--metrics-port", "0", "--otlp", "--", sys.executable, "-c", f"{code}time.sleep(0.05)"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{dead}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
        },
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        url = run.stderr.readline().removeprefix("stashtrace: metrics at ").strip()
        text, end = "", time.monotonic() + 60
        while "stashtrace_own_cpu_seconds_total{" not in text and time.monotonic() < end:
            with urllib.request.urlopen(url, timeout=30) as answer:
                text = answer.read().decode()
        assert 'stashtrace_own_cpu_seconds_total{part="follower"}' in text
        assert url.startswith("http://127.0.0.1:")
        while not any("refused" in note for s in read_states(tmp_path / "run") for note in s.notes):
            assert time.monotonic() < end, "the lost push is not noted"
            time.sleep(0.2)
        (tmp_path / "end").touch()
        said = run.stderr.read()
    assert run.returncode == 0, said
    assert said.count("stashtrace: metrics could not be written to") == 1
    assert said.count("pushes of metrics did not reach the OTLP collector") == 1
    (state,) = read_states(tmp_path / "run")
    assert state.ended
    of_folder, of_collector = state.notes
    assert of_folder.endswith(": No such file or directory")
    assert of_collector.endswith(" pushes of metrics did not reach the OTLP collector: connection refused")
