"""Measures again where the machine may have spoilt one measurement.

    shared = Measurements(lambda folder: record(...), tmp_path)
    shared.agree(lambda run: check(run))         # asserts; tries up to five runs

What a test injects takes as long as it says only while nobody else wants the CPU, the disk or the memory. A burst of
foreign load is not a defect of the code, and it is over when the same is measured again; a defect stays. So
one measurement that agrees is enough, tolerances stay as narrow as the claim, and a failure shows all measurements.
For tests of real times alone: whatever follows from counts, order or made-up input must hold at the first try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

#: Measurements made in this process, of anything; a record of the tests says how many each took.
taken_count = 0


class Measurements(Generic[T]):
    """Measurements of one thing, each made when it is first asked for; tests of a module may share them.

    Parameters
    ----------
    measure : callable
        Measures once; gets a new folder, which does not exist yet.
    folder : Path
        Where these folders are made.
    most : int
        How many measurements there may be.
    """

    def __init__(self, measure: Callable[[Path], T], folder: Path, *, most: int = 5) -> None:
        self._measure = measure
        self._folder = folder
        self._most = most
        self._taken: list[T] = []

    def __getitem__(self, number: int) -> T:
        global taken_count
        while len(self._taken) <= number:
            taken_count += 1
            self._taken.append(self._measure(self._folder / f"measured-{len(self._taken)}"))
        return self._taken[number]

    @property
    def first(self) -> T:
        """For what must hold in any measurement."""
        return self[0]

    def agree(self, check: Callable[[T], None], *, together: Callable[[Sequence[T]], None] | None = None) -> T:
        """The first measurement that passes ``check``, which asserts.

        ``together`` may accept all of them where each alone was refused: claims about medians.
        """
        reported = []
        for number in range(self._most):
            found = self[number]
            try:
                check(found)
            except AssertionError as error:
                reported.append(f"measurement {number + 1} of {self._most}: {error}")
            else:
                return found
        if together is not None:
            try:
                together(self._taken)
            except AssertionError as error:
                reported.append(f"all together: {error}")
            else:
                return self._taken[0]
        raise AssertionError("no measurement agrees\n" + "\n".join(reported))
