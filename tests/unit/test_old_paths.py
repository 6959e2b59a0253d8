"""Import paths that the pages once promised still work, and say what to write instead."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

MOVED = {
    "stashtrace.models.calibration": "stashtrace.calibration.file",
    "stashtrace.model.kinds": "stashtrace.schema.kinds",
}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_the_new_module(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (old, old.rpartition(".")[0]):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now") as told:
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert len(told) == 1


def test_the_warning_names_the_line_of_the_user() -> None:
    script = "import stashtrace.models.calibration as a\nfrom stashtrace.models.calibration import load_calibration"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", script], capture_output=True, text=True
    )
    assert "line 1, in <module>" in done.stderr
    assert "DeprecationWarning: stashtrace.models.calibration is stashtrace.calibration.file now" in done.stderr


def test_nothing_else_warns() -> None:
    script = "from stashtrace.fleet.analyze import analyze\nfrom stashtrace.calibration.file import load_calibration"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
