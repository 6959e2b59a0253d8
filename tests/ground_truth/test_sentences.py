"""The bench of sentences: what a summary claims of a job, beside the job's own clock of the same run.

A job that a burst of foreign load spoilt is run again; a claim that is false each time is false.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest
from installed import needs_torch
from measurements import Measurements

from ground_truth import machine, scenarios

needs_torch()
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # behind tests/: both have a ground_truth
from sentences import cases, check, record  # noqa: E402

pytestmark = [pytest.mark.truth, pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's images."""
    folder = tmp_path_factory.mktemp("images") / "images"
    scenarios.write_images(folder)
    return folder


@pytest.mark.parametrize("case", cases.JOBS, ids=lambda case: str(case.name))
def test_no_claim_about_a_job_is_false_and_the_largest_stall_is_first(
    case: cases.Case, images: Path, tmp_path: Path
) -> None:
    def measured(folder: Path) -> record.Recorded:
        try:
            return record.run(case, folder, images)
        except machine.Missing as error:
            pytest.skip(str(error))

    def right(found: record.Recorded) -> None:
        checked = check.check(found.findings, found.evidence, found.truth, case.expected)
        wrong = [str(c) for c in checked if c.result == check.FALSE]
        assert checked, "nothing was claimed"
        assert not wrong, "\n".join(wrong)
        first = check.first_verdict(found.findings, found.truth)
        assert not first, first

    Measurements(measured, tmp_path, most=3).agree(right)
