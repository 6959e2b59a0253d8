"""The list of staged files comes back as it was written, for names of every kind; a run gets what still holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stashtrace.errors import FormatError
from stashtrace.record.staged_files import Copy, list_for_run, read_staged_list, write_staged_list


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
def test_it_comes_back(tmp_path: Path, count: int) -> None:
    copies = {f"/data/ä b {i}\udcff.bin": Copy(f"/fast/{i}", i, 1_700_000_000_123_456_789) for i in range(count)}
    write_staged_list(tmp_path / "list", copies)
    assert read_staged_list(tmp_path / "list") == copies
    assert [path.name for path in tmp_path.iterdir()] == ["list"]


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(FormatError, match="not a list of staged files"):
        read_staged_list(tmp_path / "list")


def test_a_list_that_was_cut_off(tmp_path: Path) -> None:
    write_staged_list(tmp_path / "list", {"/a": Copy("/b", 1, 1)})
    (tmp_path / "list").write_bytes((tmp_path / "list").read_bytes()[:-1])
    with pytest.raises(FormatError, match="cut off"):
        read_staged_list(tmp_path / "list")


def test_a_folder_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        read_staged_list(tmp_path)


def test_a_run_gets_what_still_holds(tmp_path: Path) -> None:
    copies = {}
    for name in ("kept", "longer", "touched", "gone", "no_copy", "cut_copy"):
        for path in (tmp_path / name, tmp_path / f"{name}.copy"):
            path.write_bytes(b"1234")
        status = (tmp_path / name).stat()
        copies[str(tmp_path / name)] = Copy(str(tmp_path / f"{name}.copy"), 4, status.st_mtime_ns)
    write_staged_list(tmp_path / "list", copies)
    (tmp_path / "longer").write_bytes(b"12345")
    os.utime(tmp_path / "touched", ns=(1, 1))
    (tmp_path / "gone").unlink()
    (tmp_path / "no_copy.copy").unlink()
    (tmp_path / "cut_copy.copy").write_bytes(b"12")
    count, changed = list_for_run(tmp_path / "list", tmp_path / "own")
    assert count == 1
    assert {Path(name).name for name in changed} == {"longer", "touched", "gone", "no_copy", "cut_copy"}
    kept = str(tmp_path / "kept")
    assert read_staged_list(tmp_path / "own") == {kept: copies[kept]}
    assert read_staged_list(tmp_path / "list") == copies, "the list itself stays as it was"
