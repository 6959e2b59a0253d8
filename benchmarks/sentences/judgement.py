"""What a case knows beyond its clocks, and what became of a claim."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
TRUE, BOUNDS, FALSE = "true", "within bounds", "false"


@dataclass(frozen=True)
class Expected:
    """What a case knows beyond its clocks.

    Attributes
    ----------
    causes : dict of str to set of str
        Kind of verdict -> causes that are right; of "data" a cause that stands for waiting (asleep, network, ...).
        A kind that is not there is judged by the clocks alone.
    late_causes : set of str
        What may be named as what kept the late rank; empty: by the clocks.
    files : set of str
        Parts of names of files that may be blamed.
    lost : bool
        Whether records were lost.
    ending : str
        "ended_with_code 3", "ended_by_signal 9" or empty: how the job ended, by its exit status.
    killed : set of (int, int, str)
        Rank, worker (-1: the rank itself) and signal of each process that was killed.
    calls_unseen : bool
        The job loads MPI, whose calls nobody records.
    """

    causes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    late_causes: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    lost: bool = False
    ending: str = ""
    killed: frozenset[tuple[int, int, str]] = frozenset()
    calls_unseen: bool = False


@dataclass(frozen=True)
class Checked:
    """One claim and what became of it."""

    row: Row
    result: str
    why: str = ""

    def __str__(self) -> str:
        claim = f"{self.row['section']} {self.row['kind']}"
        return f"{claim}: {self.result}" + (f" ({self.why})" if self.why else "")
