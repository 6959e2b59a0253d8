"""Errors that a person sees, each with its exit code and an optional hint; and what a fault of ours costs.

A page is made of parts: claims, their words, their evidence, what to do first, pictures, tables. Whoever puts parts
together makes each by :func:`guarded`: a fault costs the line that it was to make, never the page around it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Set to ``raise``, a fault ends the command, as with ``--debug``: so tests see it.
FAULTS_VARIABLE = "STASHTRACE_FAULTS"
#: Whether faults are raised, whatever that variable says.
_are_wanted: bool | None = None
BUILD_HINT = "build it with `make native`, or install the package again"


class StashtraceError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    message : str
        One line: what happened, where, which rank or file. No full stop.
    hint : str, optional
        What to do next, with a command if there is one.
    """

    exit_code = 4

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(StashtraceError):
    """The command line or an argument makes no sense."""

    exit_code = 2


class CaptureError(StashtraceError):
    """The job could not be started or recorded."""

    exit_code = 3


class OutputError(StashtraceError):
    """What was asked for cannot be written: no such folder, no permission, no room, or something else is there."""

    exit_code = 3


class FormatError(StashtraceError):
    """A file or directory is damaged, or of another kind than expected."""


class UnsupportedVersionError(FormatError):
    """A file was written by a newer major version."""


class ImporterError(StashtraceError):
    """A foreign file could not be read."""


class MissingDataError(StashtraceError):
    """The trace lacks the data that an analysis needs."""


class PluginError(StashtraceError):
    """A plugin cannot be loaded, fails, or returns something else than it should."""


class PluginWarning(UserWarning):
    """A plugin is left out."""


class ForeignCalibrationWarning(UserWarning):
    """A calibration was measured on another machine than the run that it is compared with."""


class DataLossWarning(UserWarning):
    """Something is missing from the trace; details are in its ``losses`` table."""


def is_native_failure(error: BaseException) -> bool:
    """Return True if an import failed because ``stashtrace._native`` is missing or cannot be loaded."""
    if not isinstance(error, ImportError):
        return False
    if (
        error.path is not None and error.name != "stashtrace"
    ):  # the loader refused it; its name may be the last part alone
        return os.path.dirname(error.path) == os.path.dirname(__file__) and "_native" in str(error.name)
    return error.name == "stashtrace._native" or (error.name == "stashtrace" and "'_native'" in str(error))


def native_failure(error: Exception) -> CaptureError:
    """Return the message for a person whose Python cannot load the native half, by what the loader said.

    ``error``: ImportError of ``stashtrace._native``, or OSError of ``libstashtrace.so``.
    """
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")  # "glibc 2.36"
    except (OSError, ValueError):
        libc = None
    if not libc:
        return CaptureError(
            "the recorder cannot be loaded: the C library of this Python is not glibc (musl, as on Alpine?)",
            hint="stashtrace needs Linux with glibc 2.28 or newer: "
            "take an image such as python:3.12-slim in place of python:3.12-alpine",
        )
    if "version `GLIBC_" in str(error):
        return CaptureError(
            f"the recorder cannot be loaded: it was built for a newer glibc than this system's {libc}",
            hint="wheels need glibc 2.28 or newer; `pip install --no-binary stashtrace stashtrace` builds it here",
        )
    # By ``from stashtrace import _native``, and by ``from stashtrace._native import ...``.
    if "cannot import name" in str(error) or isinstance(error, ModuleNotFoundError):
        python = f"{sys.implementation.cache_tag}{sys.abiflags}"
        return CaptureError(
            f"the recorder cannot be loaded: it is not built for this Python ({python})", hint=BUILD_HINT
        )
    return CaptureError(f"the recorder cannot be loaded: {error}", hint=BUILD_HINT)


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
    return os.environ.get(FAULTS_VARIABLE) == "raise" if _are_wanted is None else _are_wanted


def not_said(what: str, error: Exception) -> str:
    """Say that a part is missing: for want of data, or by a fault of ours."""
    if isinstance(error, StashtraceError) and not isinstance(error, UsageError):
        return f"not said: {what}: {error}"
    return f"not said: {what} (a fault of stashtrace; --debug shows the trace)"


@contextlib.contextmanager
def raised(wanted: bool = True) -> Iterator[None]:
    """Have faults end the command, so that their trace is seen; or not."""
    global _are_wanted
    before, _are_wanted = _are_wanted, wanted
    try:
        yield
    finally:
        _are_wanted = before


def one_line(error: BaseException) -> str:
    """Return type and first line of an error."""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def say_why(error: OSError) -> str:
    """Return the reason that the system gives, for use within a sentence: ``permission denied``."""
    return (error.strerror or str(error)).lower()
