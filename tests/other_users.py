"""Lets other users into the folder of a test, and nobody into a folder that is not of pytest's making.

`from other_users import let_others_in` in tests of programs that become another user.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


def let_others_in(folder: Path) -> None:
    """Open a folder, and those above it that pytest made and closed; skip where another one above it is closed.

    Pytest makes its folders below the system's for temporary files; those of ``--basetemp`` lie in a folder of the
    user's, whose rights are not ours to change.
    """
    shared = Path(tempfile.gettempdir()).resolve()
    for place in (folder, *folder.parents):
        mode = place.stat().st_mode
        if place == folder or shared in place.parents:
            place.chmod(mode | 0o055)
        elif not mode & 0o001:
            pytest.skip(f"other users may not enter {place}, which is above the folder of the test")
