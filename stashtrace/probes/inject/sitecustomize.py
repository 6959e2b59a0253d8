"""Found by every Python of a traced job, because this folder stands first in its PYTHONPATH.

Runs the user's own sitecustomize first, then lets ``stashtrace.probes.bootstrap`` set its import hook.
It must never raise on our behalf, costs well under 5 ms, and leaves ``sys.path`` as it is: where the
package is not importable it is loaded by its place, so that no other package becomes visible.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def _run_the_users_own() -> None:
    """Import the next sitecustomize on the path; what it raises is reported by ``site`` as always."""
    from importlib.machinery import PathFinder

    here = os.path.realpath(os.path.dirname(__file__))
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.realpath(p or ".") != here])
    if spec is not None:
        _execute(spec)


def _execute(spec: ModuleSpec) -> None:
    # importlib.util would give the same function and import thirty modules with it.
    from importlib._bootstrap import module_from_spec

    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)


def _make_importable() -> None:
    from importlib.machinery import PathFinder

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    # Looked for before it is imported: nothing of the user's may run earlier than it would without us.
    found = PathFinder.find_spec("stashtrace")
    if found is not None and found.origin is not None and os.path.dirname(os.path.realpath(found.origin)) != package:
        raise ImportError(f"{found.origin} has the name of this package")
    try:
        if found is not None and found.origin is None:
            raise ModuleNotFoundError  # a folder of this name, with no module in it
        import stashtrace  # noqa: F401
    except ModuleNotFoundError:
        spec = PathFinder.find_spec("stashtrace", [os.path.dirname(package)])
        if spec is not None:
            _execute(spec)


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
