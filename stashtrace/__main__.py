"""``python -m stashtrace`` is the ``stashtrace`` command."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys


def _leave_the_current_folder() -> None:
    """Take out of the path of imports what `-m` put there: what is named types.py in it is not ours."""
    try:
        here = os.getcwd()
    except OSError:
        return  # it is gone, and `-m` put nothing there
    if sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _leave_the_current_folder()
    from stashtrace.cli import main

    raise SystemExit(main())
