"""One line of ``stashtrace doctor``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``doctor``: what, how well (ok, measured, inferred, partly, invisible, broken), why, meaning."""

    name: str
    state: str
    detail: str
    meaning: str

    def as_dict(self) -> dict[str, str]:
        """For ``--format json``."""
        return asdict(self)
