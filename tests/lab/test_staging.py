"""Copies are whole or not there, the folder holds what its list names, and no gain is claimed without an open."""

from __future__ import annotations

import errno
import os
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from stashtrace.errors import CaptureError
from stashtrace.lab import stage_files as staging
from stashtrace.lab.characterize.run_figures import Figures
from stashtrace.lab.stage_files import LIST_NAME, Staged, check_gain, held_bytes, stage
from stashtrace.record.staged_files import Copy, read_staged_list


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Three files, two of one name."""
    found = []
    for name in ("a/x.bin", "b/x.bin", "b/y.bin"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 100)
        os.utime(path, ns=(10**18, 10**18 + 123_456_789))
        found.append(str(path))
    return found


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "tier"


def files_of(tier: Path) -> set[str]:
    return {path.name for path in tier.iterdir()} - {LIST_NAME}


def test_copies_are_as_the_files(paths: list[str], tier: Path) -> None:
    staged = stage(paths, tier)
    assert list(staged.copies) == paths
    assert staged.copies == read_staged_list(tier / LIST_NAME)
    for path in paths:
        copy = Path(staged.copies[path].path)
        assert copy.read_bytes() == Path(path).read_bytes()
        assert copy.stat().st_mtime_ns == os.stat(path).st_mtime_ns == staged.copies[path].mtime_ns
    assert (staged.copied_count, staged.left_out, staged.bytes) == (3, (), 2100)


def test_again_only_what_changed_is_copied(paths: list[str], tier: Path) -> None:
    stage(paths, tier)
    Path(paths[1]).write_bytes(b"new")
    staged = stage(paths, tier)
    assert staged.copied_count == 1
    assert Path(staged.copies[paths[1]].path).read_bytes() == b"new"


def test_what_is_no_longer_chosen_goes(paths: list[str], tier: Path) -> None:
    stage(paths, tier)
    (tier / "not ours").touch()
    staged = stage(paths[:1], tier)
    assert files_of(tier) == {Path(staged.copies[paths[0]].path).name, "not ours"}


def test_a_file_that_is_gone_is_left_out(paths: list[str], tier: Path) -> None:
    os.unlink(paths[1])
    staged = stage(paths, tier)
    assert staged.left_out == ((paths[1], "no such file or directory"),)
    assert list(staged.copies) == [paths[0], paths[2]]


def test_all_are_gone(paths: list[str], tier: Path) -> None:
    for path in paths:
        os.unlink(path)
    with pytest.raises(CaptureError, match=r"none of the 3 files can be copied: .*no such file"):
        stage(paths, tier)


def test_a_file_that_changes_meanwhile_is_left_out(
    paths: list[str], tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime

    def changing(copy: Any, **times: Any) -> None:
        real(copy, **times)
        if "y.bin" in str(copy):
            Path(paths[2]).write_bytes(b"changed")

    monkeypatch.setattr(os, "utime", changing)
    staged = stage(paths, tier)
    assert staged.left_out == ((paths[2], "was changed while it was copied"),)
    assert len(files_of(tier)) == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interruption_leaves_nothing_new(
    paths: list[str], tier: Path, stop: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Path(stage(paths[:1], tier).copies[paths[0]].path)
    before = (tier / LIST_NAME).read_bytes()

    def stopping(share: float, what: str) -> None:
        if share > 0.9:
            raise stop

    with pytest.raises(CaptureError if isinstance(stop, OSError) else KeyboardInterrupt):
        stage(paths, tier, on_progress=stopping)
    assert files_of(tier) == {kept.name}
    assert (tier / LIST_NAME).read_bytes() == before


def test_half_a_copy_of_a_killed_call_goes(paths: list[str], tier: Path) -> None:
    """And nothing else that ends so: the folder may be anybody's."""
    killed = subprocess.Popen(["sleep", "60"])
    killed.kill()
    killed.wait()
    host = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
    tier.mkdir()
    (tier / f"0123456789ab-x.bin.part{killed.pid}-{host}-0123456789abcdef").write_bytes(b"half")
    others = {"film.mkv.part", "disk-x.bin.part"}
    for name in others:
        (tier / name).write_bytes(b"half of something else")
    staged = stage(paths, tier)
    assert files_of(tier) == {Path(copy.path).name for copy in staged.copies.values()} | others


def test_what_is_no_file_is_left_out(paths: list[str], tier: Path, tmp_path: Path) -> None:
    """Reading a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    staged = stage([str(tmp_path / "pipe"), str(tmp_path), *paths], tier)
    assert staged.left_out == tuple((str(path), "not a regular file") for path in (tmp_path / "pipe", tmp_path))
    assert list(staged.copies) == paths


def test_no_more_than_the_room_is_taken(paths: list[str], tier: Path) -> None:
    """A file may be larger than what was read of it, by which it was chosen."""
    with open(paths[0], "ab") as file:
        file.truncate(10_000)
    staged = stage(paths, tier, room_bytes=1500)
    assert list(staged.copies) == paths[1:]
    assert staged.left_out == ((paths[0], "10.0 KB in all do not fit into what is left of the room"),)
    assert held_bytes(tier) == staged.bytes == 1400


def test_a_copy_is_as_private_as_its_file(paths: list[str], tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is made, too; and nobody gets the rights of a program's owner by it."""
    os.chmod(paths[0], 0o4640)
    seen: list[int] = []
    real = os.utime

    def looking(copy: Any, **times: Any) -> None:
        seen.append(os.stat(copy).st_mode & 0o7777)
        real(copy, **times)

    monkeypatch.setattr(os, "utime", looking)
    copy = stage(paths[:1], tier).copies[paths[0]]
    assert seen == [0o600]
    assert os.stat(copy.path).st_mode & 0o7777 == 0o640


def test_no_room_is_said_before_copying(paths: list[str], tier: Path) -> None:
    with open(paths[0], "wb") as file:
        file.truncate(1 << 43)  # takes no room itself
    with pytest.raises(CaptureError, match=r"no room for 8\.80 TB") as caught:
        stage(paths, tier)
    assert "--size" in str(caught.value.hint)
    assert files_of(tier) == set()


def test_a_folder_of_the_job_takes_no_copies(paths: list[str], tmp_path: Path) -> None:
    """A job that lists its data would find them."""
    (tmp_path / "link").symlink_to(tmp_path / "data" / "b")
    with pytest.raises(CaptureError, match="the job reads files there"):
        stage(paths, tmp_path / "link")
    assert sorted(os.listdir(tmp_path / "data" / "b")) == ["x.bin", "y.bin"]


def test_a_file_in_place_of_the_folder(paths: list[str], tier: Path) -> None:
    tier.touch()
    with pytest.raises(CaptureError, match="cannot stage into") as caught:
        stage(paths, tier)
    assert caught.value.hint == "choose another folder with --to"


# The check --------------------------------------------------------------------------------------


def checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: int, gain: float
) -> tuple[staging.Gain, list[Any]]:
    (tmp_path / "a").write_bytes(b"1")
    asked: list[Any] = []

    def measured(task: Any, directory: Path, *rest: Any) -> tuple[Figures, int]:
        asked.append((directory.name, task.options.staged))
        with_copies = bool(task.options.staged)
        figures = Figures(1e8 - gain * with_copies + len(asked), 20, 0, 1, 1, 0)
        return figures, served if with_copies else 0

    monkeypatch.setattr(staging, "_measure", measured)
    staged = Staged({str(tmp_path / "a"): Copy(str(tmp_path / "a"), 1, 1)}, tmp_path / LIST_NAME, 1)
    found = check_gain(["job"], staged, tmp_path / "out", repeats=4, iterations=20, warmup=3)
    return found, asked


def test_pairs_alternate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = checked(tmp_path, monkeypatch, served=80, gain=1e7)
    option = str(tmp_path / LIST_NAME)
    assert asked[:4] == [("plain-0", None), ("staged-0", option), ("staged-1", option), ("plain-1", None)]
    assert found.why == ""
    assert found.opens == (80,) * 4
    assert found.gain.lost_ns.value == pytest.approx(1e7, rel=1e-3)
    assert found.gain.lost_ns.low > 0


def test_no_gain_without_an_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much faster the run was."""
    found, asked = checked(tmp_path, monkeypatch, served=0, gain=1e7)
    assert found.gain is None
    assert "no open was redirected to a copy" in found.why
    assert len(asked) == 2
