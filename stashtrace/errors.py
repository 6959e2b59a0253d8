"""Errors that a person sees, each with its exit code and an optional hint."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations


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
