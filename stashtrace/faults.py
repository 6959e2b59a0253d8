"""Faults of our own code: each costs the line that it was to make, never the page around it.

A page is made of parts: claims, their words, their evidence, what to do first, pictures, tables. Whoever puts parts
together makes each by :func:`guarded`, and says in the place of one that failed that it is not said, and why.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from stashtrace.errors import StashtraceError, UsageError, is_native_failure

T = TypeVar("T")

#: Set to ``raise``, a fault ends the command, as with ``--debug``: so tests see it.
VARIABLE = "STASHTRACE_FAULTS"
_wanted: bool | None = None


def guarded(what: str, make: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """Return what a function makes; where it fails, what another one makes of the line that says so.

    ``what``: name of the part, as a person would say it: ``the claim about slow steps``. Want of memory and errors of
    the system are not of one part, and go on; so does everything where faults are to be seen (:func:`raised`).
    """
    try:
        return make()
    except (MemoryError, OSError):
        raise
    except Exception as error:
        if _are_raised() or is_native_failure(error):
            raise
        return otherwise(not_said(what, error))


def _are_raised() -> bool:
    return os.environ.get(VARIABLE) == "raise" if _wanted is None else _wanted


def not_said(what: str, error: Exception) -> str:
    """Say that a part is missing: for want of data, or by a fault of ours."""
    if isinstance(error, StashtraceError) and not isinstance(error, UsageError):
        return f"not said: {what}: {error}"
    return f"not said: {what} (a fault of stashtrace; --debug shows the trace)"


@contextlib.contextmanager
def raised(wanted: bool = True) -> Iterator[None]:
    """Have faults end the command, so that their trace is seen; or not."""
    global _wanted
    before, _wanted = _wanted, wanted
    try:
        yield
    finally:
        _wanted = before
