"""The command line that runs a module of ours in another Python, whatever the current folder holds.

``python -m`` searches the current folder first, so a ``types.py`` or a folder ``stashtrace`` of the user would be
imported in place of the real one. The programs of the lab start their processes this way.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
#: With ``-c`` the first entry of the path is empty and means the current folder, unless PYTHONSAFEPATH keeps it out.
#: Our own folder comes last, for a package that is not installed. ``sys``, imported before that, is built in.
_CODE = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; sys.path.append({root!r}); "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def own_program(module: str, *arguments: str) -> list[str]:
    """Return words that run ``module`` as ``python -m`` does, without the current folder in its import path.

    ``module``: a module or package of ours that can be run. ``arguments``: its arguments.
    """
    return [sys.executable, "-c", _CODE.format(root=_ROOT, module=module), *arguments]
