"""Run directories behind URLs, with the file systems that fsspec has built in, and a web server of this machine."""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stashtrace.errors import CaptureError, FormatError, UsageError
from stashtrace.record.remote import deliver, fetch, is_url, read_file, write_file

fsspec = pytest.importorskip("fsspec", reason="the extra stashtrace[remote] is not installed")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with two hosts' files, one of them in a separate folder."""
    folder = tmp_path / "run"
    (folder / "node1").mkdir(parents=True)
    (folder / "node0.10.0.stash").write_bytes(b"zero" * 1000)
    (folder / "node0.10.0.ring").write_bytes(b"ring")
    (folder / "timeline.pftrace.gz").write_bytes(b"large")
    (folder / "node1" / "node1.11.0.stash").write_bytes(b"one")
    return folder


@pytest.fixture
def served(run: Path) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(run.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/run/"
    server.shutdown()
    thread.join()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


def wanted(name: str) -> bool:
    return name.endswith((".stash", ".ring"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FETCHED = {"node0.10.0.stash": b"zero" * 1000, "node0.10.0.ring": b"ring", "node1/node1.11.0.stash": b"one"}


def test_what_is_a_url() -> None:
    assert all(map(is_url, ("s3://bucket/x", "memory://x", "file:///x", "abfss://c@a.net/x")))
    assert not any(map(is_url, ("/x", "./x", "node0:/x", "C:/x", "x//y")))


def test_fetch_from_a_file_url(run: Path, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    fetch(f"file://{run}", tmp_path / "here", wanted=wanted, progress=lambda *counts: reported.append(counts))
    assert contents(tmp_path / "here") == FETCHED
    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_there_and_back_through_memory(run: Path, tmp_path: Path) -> None:
    assert deliver(run, "memory://bucket/run") == 3
    fetch("memory://bucket/run", tmp_path / "here", wanted=wanted)
    assert contents(tmp_path / "here") == {k: v for k, v in FETCHED.items() if "/" not in k}


def test_fetch_from_a_web_server(served: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp")
    fetch(served, tmp_path / "here", wanted=wanted)
    assert contents(tmp_path / "here") == FETCHED


def test_a_place_that_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no trace"):
        fetch(f"file://{tmp_path}", tmp_path / "here", wanted=wanted)
    with pytest.raises(FormatError, match=r"cannot read file:///nowhere"):
        fetch("file:///nowhere/at/all", tmp_path / "here", wanted=wanted)


def test_a_place_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="cannot write to") as caught:
        deliver(run, f"file://{tmp_path}/file/below")
    assert str(run) in str(caught.value.hint)


def test_urls_that_nobody_can_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nosuch://"):
        fetch("nosuch://x", tmp_path, wanted=wanted)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match="needs the package fsspec") as caught:
        fetch("memory://x", tmp_path, wanted=wanted)
    assert "stashtrace[remote]" in str(caught.value.hint)


@pytest.mark.parametrize("place", ["memory://bucket/lines", "file://{tmp}/lines"])
def test_one_file_there_and_back(place: str, tmp_path: Path) -> None:
    url = place.format(tmp=tmp_path) + "/deep/main.json"
    assert read_file(url) is None
    write_file(url, b"first, and longer")
    write_file(url, b"second")
    assert read_file(url) == b"second"


def test_one_file_of_a_web_server(served: str) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp")
    assert read_file(f"{served}node1/node1.11.0.stash") == b"one"
    assert read_file(f"{served}gone.json") is None


def test_one_file_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="cannot write file://"):
        write_file(f"file://{tmp_path}/file/main.json", b"")
    with pytest.raises(FormatError, match="cannot read file://"):
        read_file(f"file://{tmp_path}/file/main.json")
    with pytest.raises(UsageError, match="nosuch://"):
        read_file("nosuch://x/main.json")
