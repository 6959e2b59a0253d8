"""Files appear whole or not at all, follow nobody's links, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from stashtrace.cli.print_results import open_output
from stashtrace.errors import OutputError, StashtraceError
from stashtrace.files.whole_files import claim_file, complete_file, folder_next_to
from stashtrace.record.directory import bring_home

_WRITER = """
import sys
from pathlib import Path
from stashtrace.cli.screen import end_on_terminate
from stashtrace.files.whole_files import complete_file
end_on_terminate()
with complete_file(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    print(partial, flush=True)
    sys.stdin.read()
"""


def writer(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has written half of a file and waits; where it is."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return process, Path(process.stdout.readline().strip())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_modes(tmp_path: Path) -> None:
    target = tmp_path / "x"
    before = os.umask(0o027)
    try:
        with complete_file(target) as partial:
            assert mode(partial) == 0o600
            partial.write_text("new")
        assert mode(target) == 0o640
        target.chmod(0o604)
        with complete_file(target) as partial:
            partial.write_text("newer")
        assert mode(target) == 0o604
    finally:
        os.umask(before)
    assert target.read_text() == "newer"
    assert os.listdir(tmp_path) == ["x"]


def test_a_link_that_was_put_there_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    victim, target = tmp_path / "victim", tmp_path / "x"
    victim.write_text("mine")
    (tmp_path / f"x.part{os.getpid()}").symlink_to(victim)
    with complete_file(target) as partial:
        partial.write_text("data")
    host = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
    (tmp_path / f"x.part{os.getpid()}-{host}-{'0' * 16}").symlink_to(victim)
    with pytest.raises(StashtraceError), complete_file(target):
        pass
    assert victim.read_text() == "mine"
    assert target.read_text() == "data"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_writer_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    process, partial = writer(tmp_path / "x")
    assert partial.exists()
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode != 0
    assert os.listdir(tmp_path) == []


def test_a_file_is_claimed_once_and_whole(tmp_path: Path) -> None:
    assert claim_file(tmp_path / "x", "first")
    assert not claim_file(tmp_path / "x", "second")
    assert (tmp_path / "x").read_text() == "first"
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_is_claimed_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "no links here")

    monkeypatch.setattr("os.link", refuse)
    assert claim_file(tmp_path / "x", "first")
    assert (tmp_path / "x").read_text() == "first"
    assert os.listdir(tmp_path) == ["x"]


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path) -> None:
    killed, left = writer(tmp_path / "x")
    going, growing = writer(tmp_path / "x")
    killed.kill()
    killed.communicate(timeout=100)
    (tmp_path / "x.part12-of-my-own").touch()
    of_another_host = left.with_name(f"x.part{killed.pid}-0badcafe-{'0' * 16}")
    of_another_host.touch()
    assert left.exists()
    with complete_file(tmp_path / "x") as partial:
        partial.write_text("whole")
    assert not left.exists()
    assert growing.exists()
    of_another_host.unlink()
    going.communicate("", timeout=100)
    assert sorted(os.listdir(tmp_path)) == ["x", "x.part12-of-my-own"]
    assert (tmp_path / "x").read_text() == "half"  # the last to end


@pytest.mark.parametrize("example", ["run.json", "characterization.json"])
@pytest.mark.parametrize("rights", [0o600, 0o640])
def test_a_new_file_next_to_a_run_follows_its_rights(tmp_path: Path, example: str, rights: int) -> None:
    (tmp_path / example).touch(mode=rights)
    (tmp_path / "elsewhere").mkdir()
    before = os.umask(0o022)
    try:
        for name in ("page.html", "elsewhere/page.html"):
            with complete_file(tmp_path / name) as partial:
                partial.write_text("page")
    finally:
        os.umask(before)
    assert mode(tmp_path / "page.html") == rights
    assert mode(tmp_path / "elsewhere/page.html") == 0o644


def test_a_file_system_without_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' shares and disks refuse to change a mode; a job on one is started all the same."""

    def refuse(path: object, mode: int, **rest: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    assert claim_file(tmp_path / "run.json", "first")
    with complete_file(tmp_path / "run.json") as partial:
        partial.write_text("whole")
    assert (tmp_path / "run.json").read_text() == "whole"


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    """As root, a page for /dev/null would take its place."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(StashtraceError, match="no file"), complete_file(tmp_path / name) as partial:
            partial.write_text("page")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(StashtraceError, match="directory"), complete_file(tmp_path) as partial:
        partial.write_text("page")
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_what_will_be_refused_is_reported_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured for an hour is not lost to a folder that cannot be written to."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "old.png").touch()
    for name in ("old.png", "new.png"):
        assert open_output(str(tmp_path / name), "") == tmp_path / name
    answers = {"pipe.png": "no file", "": "it is a folder", "none/x.png": "no such folder"}
    for name, why in answers.items():
        with pytest.raises(OutputError, match=why):
            open_output(str(tmp_path / name), "")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    for name in ("old.png", "new.png"):
        with pytest.raises(OutputError, match=f"cannot write .*{name}: permission denied") as refused:
            open_output(str(tmp_path / name), "", option="--plot")
        assert refused.value.hint == "choose another file with --plot"


def test_many_copies_list_their_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of thousands of processes would be listed thousands of times."""
    (tmp_path / "home").mkdir()
    killed, left = writer(tmp_path / "home/host.1.0.stash")
    killed.kill()
    killed.communicate(timeout=100)
    (tmp_path / "scratch").mkdir()
    names = [f"host.{number}.0.stash" for number in range(20)]
    for name in names:
        (tmp_path / "scratch" / name).write_text(name)
    listed: list[object] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    bring_home(tmp_path / "scratch", tmp_path / "home")
    assert not left.exists()
    assert len([path for path in listed if path == tmp_path / "home"]) == 1
    assert sorted(listdir(tmp_path / "home")) == sorted(names)


_FILLER = """
import sys
from pathlib import Path
from stashtrace.files.whole_files import folder_next_to
with folder_next_to(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    started = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", _FILLER, str(tmp_path / "x")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append((process, Path(process.stdout.readline().strip())))
    (killed, left), (going, growing) = started
    killed.kill()
    killed.communicate(timeout=100)
    of_my_own = tmp_path / "x.part12-of-my-own"
    of_my_own.mkdir()
    assert (left / "half").exists()
    with folder_next_to(tmp_path / "x") as folder:
        assert mode(folder) == 0o700
        assert not left.exists()
        assert (growing / "half").exists()
        folder.rename(tmp_path / "x")
    going.communicate("", timeout=100)
    assert sorted(os.listdir(tmp_path)) == ["x", "x.part12-of-my-own"]
