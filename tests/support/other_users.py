"""Tests in which another user has a part.

`let_others_in(folder)` opens the folder of a test to programs that become another user; `as_another_user(act)` is what
such a user does meanwhile, for tests marked `needs_root`.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
#: Nobody's number.
ANOTHER = 54321


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


def as_another_user(act: Callable[[], object]) -> str:
    """Call a function in a process of another user, and return the text of what it returns or raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(ANOTHER, ANOTHER, ANOTHER)
            os.setresuid(ANOTHER, ANOTHER, ANOTHER)
            answer = str(act())
        except BaseException:
            answer = traceback.format_exc(limit=-1)
        os.write(writer, answer.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as reported:
        answer = reported.read().decode()
    os.waitpid(child, 0)
    return answer
