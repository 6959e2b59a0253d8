"""Found by every Python of a traced job, because this folder stands first in its PYTHONPATH.

Runs the user's own sitecustomize first, then lets ``stashtrace.probes.bootstrap`` set its import hook.
It must never raise on our behalf, costs well under 5 ms, and leaves ``sys.path`` as it is: where the
package is not importable it is loaded by its place, so that no other package becomes visible.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys


def _run_the_users_own() -> None:
    """Import the next sitecustomize on the path; what it raises is reported by ``site`` as always."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.realpath(p or ".") != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _make_importable() -> None:
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    if find_spec("stashtrace") is not None:
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec = spec_from_file_location(
        "stashtrace", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["stashtrace"] = module
        spec.loader.exec_module(module)


def _install() -> None:
    if not os.environ.get("STASHTRACE_DIR"):
        return
    try:
        _make_importable()
        from stashtrace.probes.bootstrap import install

        install()
    except Exception as error:
        rank = os.environ.get("RANK", "-")
        sys.stderr.write(f"stashtrace[{rank} {os.getpid()}] error: Python probes are off: {error!r}\n")


try:
    _run_the_users_own()
finally:
    _install()
