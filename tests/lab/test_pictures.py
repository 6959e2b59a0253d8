"""Pictures appear whole or not at all, and refusals come in one clear line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stashtrace.errors import StashtraceError
from stashtrace.lab.plot_helpers import save_figure


class Figure:
    """Writes half of a picture; then the disk is full, or not."""

    def __init__(self, *, full: bool) -> None:
        self.full = full
        self.asked: dict[str, object] = {}

    def savefig(self, path: Path, **options: object) -> None:
        self.asked = options
        path.write_bytes(b"half")
        if self.full:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"whole")


@pytest.mark.parametrize(("name", "kind"), [("a.png", "png"), ("a.SVG", "svg"), ("a.pdf", "pdf")])
def test_the_suffix_chooses_the_format(tmp_path: Path, name: str, kind: str) -> None:
    figure = Figure(full=False)
    save_figure(figure, str(tmp_path / name))
    assert figure.asked["format"] == kind
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"whole"


def test_a_full_disk_leaves_the_old_picture(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"old")
    with pytest.raises(StashtraceError, match=r"cannot write .*a\.png: No space left on device") as raised:
        save_figure(Figure(full=True), str(tmp_path / "a.png"))
    assert raised.value.hint == "choose another file with --plot"
    assert os.listdir(tmp_path) == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"old"
