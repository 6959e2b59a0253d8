"""The run of a characterisation that a model is fitted to: all ranks of one host, on synthetic data, and its stall.

Used by ``stashtrace model`` where it is given the folder of ``stashtrace characterize``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from stashtrace.errors import FormatError, MissingDataError, UsageError
from stashtrace.experiments.characterization import read_characterization
from stashtrace.models.differential import Estimate

#: Step of all ranks on synthetic data.
_STEP = 2


def run_of_all_ranks(folder: Path) -> tuple[Path, Estimate | None]:
    """The run of step 2 whose step is nearest to the median, and the interconnect stall in ns; None if not measured.

    Raises
    ------
    FormatError
        If the file is damaged, or knows nothing of its runs.
    MissingDataError
        If there is no such run, or it has been removed.
    """
    try:
        found = read_characterization(folder)
    except UsageError as error:  # there the folder is an option; here it is the data
        raise FormatError(str(error), hint=error.hint) from error
    runs = [(run.figures.step_ns, run.directory) for run in found.of_step(_STEP) if run.figures is not None]
    here = sorted((step_ns, folder / name) for step_ns, name in runs if (folder / name).is_dir())
    if not here:
        gone = "its runs of step 2 are gone" if runs else "its step 2 was not measured"
        raise MissingDataError(
            f"{folder} holds no run of all ranks: {gone}", hint="`stashtrace characterize --steps 1,2 -- COMMAND`"
        )
    stall = found.stalls().get("interconnect")
    return here[(len(here) - 1) // 2][1], stall.lost_ns if stall is not None else None
