"""Foreign traces: what their raw files hold, by plain arithmetic."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import stashtrace
from sentences import record
from sentences.check import Expected
from sentences.truth import Interval, Truth


@dataclass(frozen=True)
class Foreign:
    """A trace, or a set of them."""

    name: str
    title: str
    path: Path
    truth: Callable[[Path, Mapping[int, Sequence[Interval]]], Truth]
    expected: Expected = Expected()


def of(folder: Path) -> list[Foreign]:
    return []


def read(case: Foreign) -> record.Recorded:
    trace = stashtrace.load(case.path)
    return record.summed_up(trace, lambda windows: case.truth(case.path, windows))
