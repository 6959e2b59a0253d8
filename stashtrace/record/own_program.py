"""The command line that runs a module of ours in another Python, whatever files the current folder holds.

``python -m`` searches the current folder before everything else, so a ``types.py`` or a folder ``stashtrace`` of the
user would be imported in place of the real one. Used by the experiments, which start processes of our own.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
#: With ``-c`` the first entry is empty and means the current folder, unless PYTHONSAFEPATH keeps it out. Our own folder
#: comes last, for a package that is not installed. What is imported before that is built into the interpreter.
_CODE = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; sys.path.append({root!r}); "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def own_program(module: str, *arguments: str) -> list[str]:
    """Words that run ``module`` as ``python -m`` does, without the current folder in the path of its imports.

    Parameters
    ----------
    module : str
        Of stashtrace, with a main part.
    *arguments : str
        Of the module.
    """
    return [sys.executable, "-c", _CODE.format(root=_ROOT, module=module), *arguments]
