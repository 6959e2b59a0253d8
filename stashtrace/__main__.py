"""``python -m stashtrace`` is the ``stashtrace`` command."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # `-m` put it there: what is named types.py in it is not ours
    from stashtrace.cli import main

    raise SystemExit(main())
