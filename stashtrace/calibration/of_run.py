"""The calibration that holds for a run: a given one, or that of its directory."""

from __future__ import annotations

import os
import warnings

import numpy as np

from stashtrace.calibration.file import Calibration, find_calibration, load_calibration
from stashtrace.errors import ForeignCalibrationWarning
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace


def calibration_of(trace: Trace, calibration: Calibration | str | os.PathLike[str] | None = None) -> Calibration | None:
    """Return the given calibration, or the one in the run directory; None if there is none.

    Warns with :class:`ForeignCalibrationWarning` if it was measured on none of the run's hosts.
    """
    if calibration is None:
        measured = find_calibration(trace.path.split(os.pathsep)) if trace.path else None
    elif isinstance(calibration, Calibration):
        measured = calibration
    else:
        measured = load_calibration(calibration)
    names = host_names(trace)
    if measured is not None and measured.is_foreign(names):
        warnings.warn(
            f"{measured.path or 'the calibration'} was measured on another machine ({measured.machine_text},"
            f" {measured.date[:10]}) than {', '.join(names)}; its expected times may not hold here",
            ForeignCalibrationWarning,
            stacklevel=3,
        )
    return measured


def host_names(trace: Trace) -> list[str]:
    """Return the names of the hosts of all ranks, sorted."""
    processes = trace.processes
    hosts = np.unique(processes["host_code"][processes["role_code"] == ProcessRole.RANK])
    return sorted({trace.text(code) for code in hosts.tolist()})
