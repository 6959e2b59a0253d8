"""Imported by every Python of a traced job, since this folder comes first in its PYTHONPATH.

It runs the user's sitecustomize, then lets ``stashtrace.probes.bootstrap`` set its import hook. It must never raise
because of us, costs well under 5 ms, and leaves ``sys.path`` as it is.

The package of the probes is loaded from its folder here, under its name, and needs no other part of ``stashtrace``. So
the job's environment may have none, or one of another version: what the job imports as ``stashtrace`` is its own, and
``stashtrace.probes`` is always that of the recorder in this process.

A job may start a Python of any version, which all read this file, so its syntax is that of Python 2 and 3. In Python 2
nothing is recorded; before 3.10 only what needs no probes.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec  # noqa: F401


def _elsewhere():
    # type: () -> list[str]
    """Return the path without this folder."""
    here = os.path.realpath(os.path.dirname(__file__))
    return [p for p in sys.path if os.path.realpath(p or ".") != here]


def _run_the_users_own():
    # type: () -> None
    """Import the next sitecustomize on the path; ``site`` reports what it raises, as always."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", _elsewhere())
    if spec is not None:
        _execute(spec)


def _run_the_users_own_in_python_2():
    # type: () -> None
    import imp  # type: ignore[import-not-found, unused-ignore]

    try:
        found = imp.find_module("sitecustomize", _elsewhere())
    except ImportError:
        return
    try:
        # It takes the place of this module, as it would without us.
        imp.load_module("sitecustomize", *found)  # type: ignore[arg-type, unused-ignore]
    finally:
        if found[0]:
            found[0].close()


def _execute(spec):
    # type: (ModuleSpec) -> None
    # importlib.util has the same function, but imports thirty modules.
    from importlib._bootstrap import module_from_spec

    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)


def _load_package():
    # type: () -> None
    """Put ``stashtrace.probes`` of this folder's package in its place, without its parent."""
    from importlib.machinery import PathFinder

    probes = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    # Only looked for: no code of the user's may run earlier than it does without us.
    found = PathFinder.find_spec("stashtrace")
    folders = (found.submodule_search_locations or ()) if found is not None and found.origin is not None else ()
    for theirs in [os.path.join(folder, "probes") for folder in folders]:
        other = os.path.exists(theirs) and not os.path.exists(os.path.join(theirs, "annotations.py"))
        if other or os.path.exists(theirs + ".py"):
            raise ImportError("{} has the name of this package".format(theirs))  # noqa: UP032
    spec = PathFinder.find_spec("stashtrace.probes", [os.path.dirname(probes)])
    if spec is None:
        raise ImportError("no probes in {}".format(probes))  # noqa: UP032
    _execute(spec)


def _install():
    # type: () -> None
    if not os.environ.get("STASHTRACE_DIR") or sys.version_info < (3, 6):
        return
    try:
        _load_package()
        if sys.version_info < (3, 10):  # noqa: UP036
            from stashtrace.probes.older_python import install
        else:
            from stashtrace.probes.bootstrap import install
        install()
    except Exception as error:
        rank = os.environ.get("RANK", "-")
        text = "stashtrace[{} {}] error: Python probes are off: {!r}\n"
        sys.stderr.write(text.format(rank, os.getpid(), error))


if sys.version_info[0] < 3:  # noqa: UP036
    _run_the_users_own_in_python_2()
else:
    try:
        _run_the_users_own()
    finally:
        _install()
