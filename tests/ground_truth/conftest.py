"""What the tests of real faults share: one set of images for a file of tests, and how a fault is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ground_truth import machine, scenarios
from ground_truth.scenarios import Compare, RankComparison, Scenario


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """``compare(scenario, folder)``: both ranks by the script's clock and by ours, of one run in a new folder.

    Skips the test where this machine cannot make the fault.
    """
    images = tmp_path_factory.mktemp("images")
    scenarios.write_images(images)

    def run(scenario: Scenario, folder: Path) -> list[RankComparison]:
        folder.mkdir()
        try:
            ranks = scenarios.run(scenario, images, folder)
        except machine.Missing as missing:
            pytest.skip(str(missing))
        finally:
            scenarios.clean(folder)
        assert [rank.rank for rank in ranks] == [0, 1]
        return ranks

    return run
