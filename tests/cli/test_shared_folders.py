"""Folders that other users may write to: no file of ours elsewhere is harmed, and what they may replace is refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import environment
from other_users import ANOTHER, as_another_user, let_others_in, needs_root

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import CaptureError
from stashtrace.files.whole_files import claim_file, folder_next_to, new_log, whole_file
from stashtrace.lab import stage_files as staging
from stashtrace.lab.stage_files import stage
from stashtrace.record.directory import prepare_directory


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of ours that no command may touch."""
    path = tmp_path / "own/precious"
    path.parent.mkdir()
    path.write_bytes(b"mine")
    yield path
    assert path.read_bytes() == b"mine"
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of another user's, who is let in."""
    folder = tmp_path / "shared"
    folder.mkdir()
    let_others_in(tmp_path)
    if os.geteuid() == 0:
        os.chown(folder, ANOTHER, ANOTHER)
    return folder


def put_links(folder: Path, target: Path) -> Callable[[], None]:
    """What an attacker does who sees a new name: takes it away and puts a link there."""

    def act() -> None:
        for name in os.listdir(folder):
            if os.path.islink(folder / name) or name.startswith("away-"):
                continue
            os.rename(folder / name, folder / f"away-{name}")
            os.symlink(target, folder / name)

    return act


def test_a_run_directory_is_tried_by_a_name_that_nobody_knows(shared: Path, victim: Path) -> None:
    for name in (f"{os.uname().nodename}.{pid}" for pid in range(os.getpid() - 5, os.getpid() + 5)):
        (shared / f".stashtrace-probe.{name}").symlink_to(victim)
    before = set(shared.iterdir())
    assert prepare_directory(str(shared)) == shared
    assert set(shared.iterdir()) == before


@pytest.mark.parametrize("rights", [0o755, 0o1777, 0o775, 0o777])
def test_a_file_that_is_written_where_others_rename(tmp_path: Path, victim: Path, rights: int) -> None:
    """The content goes to our file, whatever has its name by then; it is whole under its name in the end."""
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(rights)
    with whole_file(folder / "page.html") as partial:
        if rights & 0o022 and not rights & stat.S_ISVTX:
            put_links(folder, victim)()
        partial.write_text("page")
    assert (folder / "page.html").read_text() == "page"
    assert not (folder / "page.html").is_symlink()
    assert claim_file(folder / "run.json", "{}")
    assert not claim_file(folder / "run.json", "[]")
    assert (folder / "run.json").read_text() == "{}"


@needs_root
def test_another_user_replaces_what_is_being_written(shared: Path, victim: Path) -> None:
    with whole_file(shared / "page.html") as partial:
        assert as_another_user(put_links(shared, victim)) == "None"
        partial.write_text("page")
    assert (shared / "page.html").read_text() == "page"
    with folder_next_to(shared / "made") as made:
        assert as_another_user(put_links(shared, victim.parent)) == "None"
        (made / "part").write_text("part")
        assert os.stat(made).st_mode & 0o777 == 0o700
        os.replace(made, shared / "made-2")
    assert (shared / "made-2/part").read_text() == "part"


def test_nothing_is_left_where_others_rename(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with whole_file(tmp_path / "x") as partial:
        partial.write_text("x")
    with pytest.raises(RuntimeError), whole_file(tmp_path / "y"):
        raise RuntimeError
    with folder_next_to(tmp_path / "z") as folder:
        (folder / "half").touch()
    assert os.listdir(tmp_path) == ["x"]


def test_a_log_is_not_written_through_a_link(shared: Path, victim: Path) -> None:
    (shared / "job.log").symlink_to(victim)
    with new_log(shared / "job.log") as log:
        log.write(b"printed")
    assert (shared / "job.log").read_bytes() == b"printed"


@pytest.mark.parametrize("command", [["run", "--no-merge", "--out", "DIR", "--", "true"], ["env", "--out", "DIR"]])
def test_a_directory_that_everybody_may_write_to_is_no_run_directory(tmp_path: Path, command: list[str]) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    place.chmod(0o777)

    def answer(directory: Path) -> subprocess.CompletedProcess[str]:
        words = [str(directory) if word == "DIR" else word for word in command]
        words = [sys.executable, "-m", "stashtrace", *words]
        return subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)

    refused = answer(place)
    assert refused.returncode == 3
    assert refused.stderr == (
        f"error: every user of this machine may replace what is written into {place}\n\n"
        f"hint: let a run directory of yours be made in it: `--out {place}/NAME`\n"
    )
    assert list(place.iterdir()) == []
    assert answer(place / "NAME").returncode == 0
    assert (place / "NAME").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("rights", [0o755, 0o775, 0o2770, 0o1777])
def test_folders_of_one_user_or_group_or_with_the_sticky_bit_are_taken(tmp_path: Path, rights: int) -> None:
    """A group was let in on purpose; with umask 002 it is that of the user."""
    place = tmp_path / "project"
    place.mkdir()
    place.chmod(rights)
    assert prepare_directory(str(place)) == place


def test_where_files_have_no_modes_those_of_folders_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the disks of Windows: everything is 0777 there."""
    real = os.open

    def open_for_all(path: object, flags: int, mode: int = 0o777, **rest: int) -> int:
        made = real(path, flags, mode, **rest)
        if flags & os.O_CREAT:
            os.chmod(made, 0o777)
        return made

    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "open", open_for_all)
    assert prepare_directory(str(tmp_path)) == tmp_path


@needs_root
def test_the_folder_of_another_user(tmp_path: Path) -> None:
    """Whose owner may replace everything in it. Root may work there: in a container it is anybody."""
    place = tmp_path / "theirs"
    place.mkdir()
    let_others_in(tmp_path)
    os.chown(place, ANOTHER + 1, ANOTHER)
    place.chmod(0o1777)
    assert prepare_directory(str(place)) == place
    refused = as_another_user(lambda: prepare_directory(str(place)))
    assert f"its owner {ANOTHER + 1} may replace what is written into {place}" in refused
    assert as_another_user(lambda: prepare_directory(str(place / "own"))) == str(place / "own")
    os.chown(place, 0, 0)
    assert as_another_user(lambda: prepare_directory(str(place))) == str(place)


@needs_root
@pytest.mark.parametrize(("owner", "rights"), [(ANOTHER, 0o600), (0, 0o666)])
def test_the_mode_of_another_users_run_file_is_no_example(tmp_path: Path, owner: int, rights: int) -> None:
    (tmp_path / "run.json").write_text("{}")
    os.chmod(tmp_path / "run.json", 0o666)
    os.chown(tmp_path / "run.json", owner, owner)
    before = os.umask(0o077)
    try:
        with whole_file(tmp_path / "page.html") as partial:
            partial.write_text("page")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == rights


def test_a_directory_that_is_replaced_during_the_run_is_reported(tmp_path: Path) -> None:
    job = "import os, sys; os.rename('run', 'away'); os.mkdir('run'); sys.exit(7)"
    words = [sys.executable, "-m", "stashtrace", "run", "--out", "run", "--", sys.executable, "-c", job]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 7
    assert f"another folder has taken the place of run directory {tmp_path / 'run'} during the run" in done.stderr
    assert list((tmp_path / "run").iterdir()) == []
    assert json.loads((tmp_path / "away/run.json").read_text())["run_id"]


@pytest.mark.parametrize("options", [[], ["--scratch", "scratch"]])
def test_a_directory_that_took_the_place_of_a_run_is_left_alone(tmp_path: Path, options: list[str]) -> None:
    """Nothing is removed from it nor copied into it, and it is not said that nothing was recorded."""
    job = (
        "import glob, os; (run,) = glob.glob('stash-*'); open('input').read(); os.rename(run, 'away'); os.mkdir(run);"
        " open(run + '/run.json', 'w').write('theirs')"
    )
    (tmp_path / "input").write_text("x")
    words = [sys.executable, "-m", "stashtrace", "run", *options, "--", sys.executable, "-c", job]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)
    (theirs,) = tmp_path.glob("stash-*")
    assert [(path.name, path.read_text()) for path in theirs.iterdir()] == [("run.json", "theirs")]
    assert "another folder has taken the place of run directory" in done.stderr
    assert "nothing was recorded" not in done.stderr
    assert f"merge {theirs.name}" not in done.stderr
    if options:
        (records,) = (tmp_path / "scratch").iterdir()
        assert f"`stashtrace merge {records}`" in done.stderr
        assert main(["merge", str(records)]) == 0


# Copies of files ----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data/x.bin"
    path.parent.mkdir()
    path.write_bytes(b"data" * 1000)
    return str(path)


def test_half_a_copy_has_a_name_that_nobody_knows(
    shared: Path, victim: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of the name that a half copy would plainly have appears after the look for leftovers."""
    copy = shared / staging._name_of(data)
    real = staging._look_for_room

    def look(*given: object) -> None:
        (shared / f"{copy.name}.part").symlink_to(victim)
        real(*given)

    monkeypatch.setattr(staging, "_look_for_room", look)
    stage([data], shared)
    assert copy.read_bytes() == Path(data).read_bytes()
    assert not copy.is_symlink()


@needs_root
def test_half_a_copy_is_replaced_meanwhile(shared: Path, victim: Path, data: str) -> None:
    def meanwhile(share: float, what: str) -> None:
        assert as_another_user(put_links(shared, victim)) == "None"

    stage([data], shared, on_progress=meanwhile)
    assert (shared / staging._name_of(data)).read_bytes() == Path(data).read_bytes()


@needs_root
def test_what_another_user_put_there_is_no_copy(tmp_path: Path, data: str) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    planted = tier / staging._name_of(data)
    planted.write_bytes(b"evil" * 1000)
    os.utime(planted, ns=(0, os.stat(data).st_mtime_ns))
    os.chown(planted, ANOTHER, ANOTHER)
    assert stage([data], tier).copied_count == 1
    assert planted.read_bytes() == Path(data).read_bytes()


def test_a_tier_that_everybody_may_write_to_is_refused(tmp_path: Path, data: str) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    tier.chmod(0o777)
    with pytest.raises(CaptureError, match="every user of this machine may replace the copies") as refused:
        stage([data], tier)
    assert refused.value.hint == f"let a folder of yours be made in it: `--to {tier}/NAME`"
    assert list(tier.iterdir()) == []
    assert stage([data], tier / "own").copied_count == 1


# The merge ----------------------------------------------------------------------------------------


def test_the_merge_writes_into_no_second_name_of_a_file(tmp_path: Path, victim: Path, capfd) -> None:
    run = tmp_path / "run"
    assert write_synthetic([str(run), "--ranks", "1", "--steps", "4"]) == 0
    recorded = next(run.glob("*.stash"))
    os.link(victim, f"{recorded}.tmp")
    main(["merge", str(run)])
    assert "another user's file" in capfd.readouterr().err
    assert main(["merge", str(run)]) == 0
