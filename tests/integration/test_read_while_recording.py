"""A run is read while its process writes: every row once, none missing, at any moment; and after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stashtrace.format.compact import compact_run
from stashtrace.format.reader import open_run
from stashtrace.format.stash_file import StashFile
from stashtrace.record.environment import preload_path

ROOT = Path(__file__).resolve().parents[2]

#: Emits rows with rising values; pauses now and then, so that the drainer keeps up and no row is dropped.
WRITER = """
import struct, time
from stashtrace import _native
from stashtrace.record.environment import preload_path
[kind] = [r for r in _native.schema()["records"] if r["name"] == "span"]
row = struct.Struct("<QQQqIHH")
assert row.size == kind["row_bytes"]
value = 0
while True:
    for _ in range(200):
        now = _native.now_ticks()
        _native.emit(kind["id"], row.pack(now, now, 0, value, 0, 0, 0))
        value += 1
    time.sleep(0.002)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A traced process that records without end."""
    environment = dict(
        os.environ,
        LD_PRELOAD=preload_path(ROOT / "stashtrace" / "libstashtrace.so"),
        PYTHONPATH=str(ROOT),
        STASHTRACE_DIR=str(tmp_path),
        STASHTRACE_RUN_ID="feed",
        STASHTRACE_COLLECTORS="annotations",
    )
    with subprocess.Popen([sys.executable, "-c", WRITER], env=environment) as process:
        deadline = time.monotonic() + 100
        while not list(tmp_path.glob("*.stash")) and time.monotonic() < deadline:
            time.sleep(0.01)
        yield process
        process.kill()


def values(path: Path) -> tuple[list[int], StashFile]:
    [process] = open_run(path).processes
    records = process.load(("span",)).records.get("span")
    return [] if records is None else records.rows["value"].tolist(), process


def test_every_row_once_at_any_moment(tmp_path: Path, writer: subprocess.Popen[bytes]) -> None:
    seen = times = 0
    deadline = time.monotonic() + 100
    while times < 40 or (seen <= 1000 and time.monotonic() < deadline):
        found, process = values(tmp_path)
        assert found == list(range(len(found)))
        assert process.losses == []
        assert len(found) >= seen
        seen, times = len(found), times + 1
        time.sleep(0.02)
    assert seen > 1000
    assert compact_run(open_run(tmp_path)).alive == [process.name]

    writer.send_signal(signal.SIGKILL)
    writer.wait()
    after, _ = values(tmp_path)
    assert after == list(range(len(after)))
    assert len(after) >= seen
    assert compact_run(open_run(tmp_path)).merged == [process.name]
    assert values(tmp_path)[0] == after
    assert [p.suffix for p in tmp_path.iterdir()] == [".stash"]
