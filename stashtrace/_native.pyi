"""Types of the native half. One block per file of csrc/bindings."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str

# bind_schema.cpp
def schema() -> dict[str, Any]: ...

# bind_intervals.cpp
_Column = npt.NDArray[np.int64]

class intervals:
    @staticmethod
    def union(begin: _Column, end: _Column) -> tuple[_Column, _Column]: ...
    @staticmethod
    def intersect(begin: _Column, end: _Column, begin2: _Column, end2: _Column) -> tuple[_Column, _Column]: ...
    @staticmethod
    def subtract(begin: _Column, end: _Column, begin2: _Column, end2: _Column) -> tuple[_Column, _Column]: ...
    @staticmethod
    def complement(begin: _Column, end: _Column, window_begin: int, window_end: int) -> tuple[_Column, _Column]: ...
    @staticmethod
    def coverage(begin: _Column, end: _Column, query_begin: _Column, query_end: _Column) -> _Column: ...
    @staticmethod
    def locate(begin: _Column, end: _Column, points: _Column) -> _Column: ...
    @staticmethod
    def join(
        begin: _Column, end: _Column, begin2: _Column, end2: _Column
    ) -> tuple[_Column, _Column, _Column, _Column]: ...
    @staticmethod
    def paint(layers: Sequence[tuple[_Column, _Column]]) -> tuple[_Column, _Column, _Column]: ...
    @staticmethod
    def attribute(layers: Sequence[tuple[_Column, _Column]], window_begin: _Column, window_end: _Column) -> _Column: ...

def __getattr__(name: str) -> Any: ...
