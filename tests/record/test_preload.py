"""Under which path a library in any folder is preloaded."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stashtrace.errors import CaptureError
from stashtrace.record.environment import LIBRARY_PATH, preload_path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The real one, in a folder that LD_PRELOAD cannot name."""
    found = tmp_path / "a clone: mine" / "libstashtrace.so"
    found.parent.mkdir()
    found.symlink_to(LIBRARY_PATH)
    return found


def test_a_path_without_blanks_is_taken_as_it_is(tmp_path: Path) -> None:
    plain = tmp_path / "libstashtrace.so"
    plain.touch()
    assert preload_path(plain) == str(plain)
    with pytest.raises(CaptureError, match="is not in"):
        preload_path(tmp_path / "missing.so")


def test_a_path_with_a_blank_gets_a_link_that_the_loader_takes(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    link = Path(preload_path(library))
    assert link.parent.parent == tmp_path / "cache" / "stashtrace"
    assert link.samefile(library)
    assert (link.name, link.parent.stat().st_mode & 0o777) == ("libstashtrace.so", 0o700)
    code = "print('libstashtrace.so' in open('/proc/self/maps').read())"
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(link)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert preload_path(library) == str(link), "the link is made once"


def test_a_link_of_an_older_install_is_replaced(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    link = Path(preload_path(library))
    link.unlink()
    link.symlink_to("/nowhere/libstashtrace.so")
    assert Path(preload_path(library)).samefile(library)


@pytest.mark.parametrize("is_itself", [True, False], ids=["itself", "the one above"])
def test_a_folder_that_others_may_write_is_not_used(
    is_itself: bool, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write to the folder above may put another in its place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    used = Path(preload_path(library)).parent
    (used if is_itself else used.parent).chmod(0o777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert Path(preload_path(library)).is_relative_to(tmp_path / "temporary")
    Path(preload_path(library)).parent.chmod(0o777)
    with pytest.raises(CaptureError, match="LD_PRELOAD cannot name"):
        preload_path(library)
