"""``python -m stashtrace`` is the ``stashtrace`` command."""

from __future__ import annotations

import os
import sys


def _leave_the_current_folder() -> None:
    """Take the current folder, which `-m` put there, off the import path: it may hold a types.py."""
    try:
        here = os.getcwd()
    except OSError:
        return  # the folder is gone, and `-m` did not add it
    if sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _leave_the_current_folder()
    from stashtrace.cli import main

    raise SystemExit(main())
