"""Weights of samples that a user gives: what a cache that knows them would keep first (SHADE's order)."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.timeset import Int64
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.model.trace import Trace

Importance = Mapping[str, float] | str | os.PathLike[str]


def weights_of(importance: Importance) -> dict[str, float]:
    """Weight by absolute path, of a mapping or of a file with a line ``path,weight`` for each sample.

    Raises
    ------
    UsageError
        If the file cannot be read, or a line is something else.
    """
    if isinstance(importance, Mapping):
        return {os.path.abspath(path): float(weight) for path, weight in importance.items()}
    try:
        lines = Path(importance).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot read {importance}: {why}", hint="--importance FILE: a line `path,weight` each"
        ) from error
    found: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        path, comma, text = line.rpartition(",")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not comma or math.isnan(weight):
            raise UsageError(
                f"line {number} of {importance} is no `path,weight`: {line[:80]}", hint="as in /data/a.jpg,3.2"
            )
        found[os.path.abspath(path.strip())] = weight
    if not found:
        raise UsageError(f"{importance} is empty", hint="a line `path,weight` for each sample")
    return found


def ranks_of(trace: Trace, importance: Importance) -> npt.NDArray[np.float64]:
    """Weight by string code of a path; minus infinity for paths without one.

    Raises
    ------
    MissingDataError
        If no path of the run has a weight.
    """
    weights = weights_of(importance)
    found = np.full(len(trace.strings), -np.inf)
    for path, weight in weights.items():
        code = trace.strings.find(path)
        if code >= 0:
            found[code] = weight
    if np.isneginf(found).all():
        raise MissingDataError(
            "none of the samples with an importance was read", hint="its paths are those that `analyze io` shows"
        )
    return found


def most_important_first(weight: npt.NDArray[np.float64], first: Int64, size: Int64) -> Int64:
    """Bytes that a cache needs to hold each block and all that are more important; of equals the one read first."""
    order = np.lexsort((first, -weight))
    needed = np.empty(len(size), dtype=np.int64)
    needed[order] = np.cumsum(size[order])
    return needed
