"""Files of every released format version are read for ever, row by row."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from stashtrace.format.compact import compact_file
from stashtrace.format.stash_file import StashFile
from stashtrace.loading.load import load_trace

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"


@pytest.fixture(params=sorted(p.name for p in GOLDEN.iterdir()))
def version(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Copies of one version's files, the ring unpacked."""
    folder = tmp_path / "files"
    shutil.copytree(GOLDEN / request.param, folder)
    (folder / "killed.ring").write_bytes(gzip.decompress((folder / "killed.ring.gz").read_bytes()))
    return folder


def version_has_devices(folder: Path) -> bool:
    return "device_bracket" in json.loads((folder / "rows.json").read_text())


def check(path: Path, folder: Path) -> None:
    """Every row as it was written; fields that later versions appended are not looked at."""
    expected: dict[str, list[list[object]]] = json.loads((folder / "rows.json").read_text())
    raw = StashFile(str(path), strict=True).load()
    assert set(raw.records) == set(expected)
    for name, rows in expected.items():
        assert [list(row)[: len(rows[0])] for row in raw.records[name].rows.tolist()] == rows, name
    assert sum(map(len, expected.values())) > 150


@pytest.mark.parametrize("name", ["killed.stash", "merged.stash"])
def test_read(version: Path, name: str) -> None:
    check(version / name, version)


def test_merging_today_keeps_every_row(version: Path) -> None:
    compact_file(StashFile(str(version / "killed.stash")))
    assert not (version / "killed.ring").exists()
    check(version / "killed.stash", version)


def test_every_table_is_filled(version: Path) -> None:
    trace = load_trace(version / "killed.stash")
    for name in ("spans", "phases", "batches", "io", "waits", "collectives", "groups", "counters", "tracks"):
        assert len(trace.table(name)), name
    assert "/data/a long path that needs two parts/" in "".join(trace.strings)


def test_every_table_of_devices_is_filled(version: Path) -> None:
    if not version_has_devices(version):
        pytest.skip("made before devices were recorded")
    trace = load_trace(version / "killed.stash")
    for name in ("devices", "streams", "device_brackets", "device_calls", "kernels", "collective_details"):
        assert len(trace.table(name)), name
