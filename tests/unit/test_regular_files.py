"""Only regular files of a bounded size are read, and nothing waits for a writer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stashtrace.files.whole_files import open_regular, read_text, read_whole


def test_pipes_devices_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", Path("/dev/null")):
        with pytest.raises(OSError, match="a device or a pipe") as refused:
            open_regular(path)
        assert refused.value.errno == errno.EINVAL
    with pytest.raises(IsADirectoryError):
        read_whole(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "none")


def test_files_are_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\r\nb\xff")
    assert read_whole(path) == b"a\r\nb\xff"
    assert read_text(path, errors="replace") == "a\nb\ufffd"
    os.truncate(path, 1 << 40)  # without a block behind it
    with pytest.raises(OSError, match="larger than any file of its kind"):
        read_whole(path)
    with pytest.raises(OSError, match="larger"):
        read_whole(path, most_bytes=4)
