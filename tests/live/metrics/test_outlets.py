"""The three ways out: what they write, and what they say when nobody takes it."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from live_states import ZERO_NS, made_up_state

from stashtrace.live.metrics.outlets import MetricsPort, OtlpPush, Outlets, Textfile, metrics_data
from stashtrace.live.metrics.series import families_of

pytest.importorskip("prometheus_client")
FAMILIES = families_of(made_up_state())
SUM = "stashtrace_lost_records_total 3.0"


def until(holds: Callable[[], Any], limit_s: float = 30.0) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, "did not come true"
        time.sleep(0.02)


class TestTextfile:
    def test_is_replaced_whole_and_can_be_read_by_others(self, tmp_path: Path) -> None:
        mask = os.umask(0o077)  # the user alone may read the run; node_exporter runs as another user
        try:
            out = Textfile(tmp_path, "node07", "ab12")
            assert out.publish(FAMILIES, ended=False) == ""
            before = os.stat(tmp_path / "stashtrace-node07-ab12.prom")
            assert out.publish(FAMILIES, ended=False) == ""
        finally:
            os.umask(mask)
        path = tmp_path / "stashtrace-node07-ab12.prom"
        assert SUM in path.read_text().splitlines()
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert path.stat().st_ino != before.st_ino
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_that_goes_and_comes(self, tmp_path: Path) -> None:
        out = Textfile(tmp_path / "prom", "node07", "ab12")
        note = out.publish(FAMILIES, ended=False)
        assert note == f"metrics could not be written to {tmp_path / 'prom'} 1 of 1 times: No such file or directory"
        (tmp_path / "prom").mkdir()
        assert "1 of 2 times" in out.publish(FAMILIES, ended=False)
        assert SUM in (tmp_path / "prom/stashtrace-node07-ab12.prom").read_text()

    def test_files_of_runs_that_are_over_go(self, tmp_path: Path) -> None:
        Textfile(tmp_path, "node07", "ended").publish(FAMILIES, ended=True)
        Textfile(tmp_path, "node07", "killed").publish(FAMILIES, ended=False)
        os.utime(tmp_path / "stashtrace-node07-killed.prom", (0, 0))
        Textfile(tmp_path, "node08", "other").publish(FAMILIES, ended=True)
        assert Textfile(tmp_path, "node07", "next").publish(FAMILIES, ended=False) == ""
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["stashtrace-node07-next.prom", "stashtrace-node08-other.prom"]

    def test_another_run_that_still_writes_is_reported(self, tmp_path: Path) -> None:
        Textfile(tmp_path, "node07", "first").publish(FAMILIES, ended=False)
        second = Textfile(tmp_path, "node07", "second")
        note = second.publish(FAMILIES, ended=False)
        assert note.startswith(f"{tmp_path / 'stashtrace-node07-first.prom'} is of another run of this host")
        assert second.publish(FAMILIES, ended=False) == note
        assert (tmp_path / "stashtrace-node07-first.prom").exists()


def listener() -> socket.socket:
    one = socket.create_server(("127.0.0.1", 0), backlog=16)
    return one


class TestPort:
    @pytest.fixture
    def port(self) -> Iterator[tuple[MetricsPort, tuple[str, int]]]:
        bound = listener()
        out = MetricsPort(bound, limit_s=0.3)
        out.publish(FAMILIES, ended=False)
        yield out, bound.getsockname()
        out.publish(FAMILIES, ended=True)

    def test_answers_in_both_formats(self, port: tuple[MetricsPort, tuple[str, int]]) -> None:
        url = f"http://127.0.0.1:{port[1][1]}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert SUM in answer.read().decode().splitlines()
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")

    def test_scrapers_that_never_end_are_cut_and_counted(
        self, port: tuple[MetricsPort, tuple[str, int]], capfd: pytest.CaptureFixture[str]
    ) -> None:
        out, address = port
        threads = threading.active_count()
        silent = [socket.create_connection(address, 10) for _ in range(12)]
        for one in silent:
            one.sendall(b"GET /metr")
        until(lambda: "4 took too long" in out.publish(FAMILIES, ended=False))
        note = out.publish(FAMILIES, ended=False)
        assert note == ("of the connections to the metrics port, 8 found no place and 4 took too long, and were closed")
        assert threading.active_count() <= threads + 4
        for one in silent:
            one.close()
        until(lambda: threading.active_count() <= threads)
        with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/metrics", timeout=10) as answer:
            assert SUM in answer.read().decode()
        assert capfd.readouterr() == ("", "")

    def test_closes_with_the_job(self) -> None:
        bound = listener()
        address = bound.getsockname()
        out = MetricsPort(bound)
        out.publish(FAMILIES, ended=True)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 10)


class Collector(HTTPServer):
    """A collector that keeps what it is sent; ``answer``: status, or None for no answer until it is closed."""

    def __init__(self, answer: int | None) -> None:
        bodies: list[tuple[str, bytes, str]] = []
        closing = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.append((self.path, body, self.headers.get("x-token", "")))
                if answer is None:
                    closing.wait(60)
                    return
                self.send_response(answer)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.closing = bodies, closing
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{self.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")


class TestOtlp:
    @pytest.fixture(autouse=True)
    def needs_the_exporter(self) -> None:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

    def test_what_a_collector_gets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        collector = Collector(200)
        collector.environment(monkeypatch)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=training,cluster=north")
        out = OtlpPush(ZERO_NS)
        assert out.publish(FAMILIES, ended=True) == ""
        collector.shutdown()
        [(path, body, token)] = collector.bodies
        assert (path, token) == ("/v1/metrics", "secret")
        [resource] = ExportMetricsServiceRequest.FromString(body).resource_metrics
        attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert attributes["service.name"] == "training"
        assert attributes["cluster"] == "north"
        metrics = {one.name: one for one in resource.scope_metrics[0].metrics}
        assert set(metrics) == {family.series.full_name for family in FAMILIES}
        lost = metrics["stashtrace_lost_records_total"].sum
        assert lost.is_monotonic
        assert (lost.data_points[0].as_double, lost.data_points[0].start_time_unix_nano) == (3.0, ZERO_NS)
        [first, _] = metrics["stashtrace_step_seconds"].histogram.data_points
        assert (first.count, first.sum, sum(first.bucket_counts)) == (4, 2.0, 4)
        assert len(first.bucket_counts) == len(first.explicit_bounds) + 1
        assert metrics["stashtrace_step_seconds"].unit == "s"

    def test_a_collector_that_is_not_there(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        bound = listener()
        port = bound.getsockname()[1]
        bound.close()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:secret@127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
        out = OtlpPush(ZERO_NS)
        note = out.publish(FAMILIES, ended=True)
        assert note == "1 of 1 pushes of metrics did not reach the OTLP collector: connection refused"
        assert capfd.readouterr() == ("", "")

    def test_a_collector_that_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collector = Collector(401)
        collector.environment(monkeypatch)
        note = OtlpPush(ZERO_NS).publish(FAMILIES, ended=True)
        collector.shutdown()
        assert "1 of 1 pushes" in note
        assert "401" in note

    def test_a_collector_that_never_answers_holds_nobody_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collector = Collector(None)
        collector.environment(monkeypatch)
        out = OtlpPush(ZERO_NS)
        threads = threading.active_count()
        begin_s = time.monotonic()
        for _ in range(8):  # one is under way, four wait
            out.publish(FAMILIES, ended=False)
            out._next_s = 0.0
            until(lambda: collector.bodies)
        assert time.monotonic() - begin_s < 30
        assert out.dropped_count == 3
        assert threading.active_count() <= threads + 1
        note = out.publish(FAMILIES, ended=True)
        assert note.startswith("9 of 9 pushes of metrics did not reach the OTLP collector: no answer within ")
        collector.closing.set()
        collector.shutdown()

    def test_a_variable_that_makes_no_sense(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "often")
        note = OtlpPush(ZERO_NS).publish(FAMILIES, ended=True)
        assert note.startswith("1 of 1 pushes")

    def test_sums_start_with_the_run(self) -> None:
        [resource] = metrics_data(FAMILIES, 5, 7).resource_metrics
        points = [p for m in resource.scope_metrics[0].metrics for p in m.data.data_points]
        assert {(p.start_time_unix_nano, p.time_unix_nano) for p in points} == {(5, 7)}


def test_each_loss_is_said_once_and_noted_as_long_as_it_counts() -> None:
    class Broken:
        name = "broken"
        count = 0

        def publish(self, families: Any, *, ended: bool) -> str:
            self.count += 1
            return f"lost {self.count}"

    said: list[str] = []
    outlets = Outlets([Broken()], said.append)
    assert [outlets.publish(made_up_state()) for _ in range(3)] == [["lost 1"], ["lost 2"], ["lost 3"]]
    assert said == ["lost 1"]
